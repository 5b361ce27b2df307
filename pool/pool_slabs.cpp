// PoolCore: its slabs, and its figures.

#include <algorithm>
#include <exception>
#include <limits>
#include <unordered_set>

#include "base/bytes.h"
#include "base/format.h"
#include "pool_core.h"

namespace cachalot {

// Where the device refuses, the slab stays the allocator's.
PoolCore::~PoolCore() {
  for (const auto& slab : slabs_) {
    try {
      memory_.deallocate(*slab);
    } catch (const std::exception&) {
    }
  }
}

// --- slabs -----------------------------------------------------------------------------------------------------------

void PoolCore::make_initial_slots() {
  const Lock lock(mutex_);
  if (options_.initial_slots > 0) add_slab(options_.initial_slots, memory_.know(options_.stream));
}

// Slots that the next slab may have; 0: the pool may not grow.
std::size_t PoolCore::may_add() const {
  if (!ever_grows(options_)) return 0;
  return options_.max_slots == 0 ? options_.growth_step : std::min(options_.growth_step, options_.max_slots - slots_);
}

// Everything that can fail comes before the slab is ours.
void PoolCore::add_slab(std::size_t slots, StreamKey stream) {
  memory_.require_fits(slots);
  const std::size_t slabs = slabs_.size() + detached_ + 1;
  if (slabs > slabs_.capacity()) slabs_.reserve(2 * slabs);
  free_.expect(stream, slots);
  growing_ = true;
  std::unique_ptr<PoolSlab> slab;
  try {
    const Unlocked unlocked(mutex_);
    slab = memory_.allocate(slots, stream);
  } catch (...) {
    free_.expect_fewer(stream, slots);
    growing_ = false;
    changed_.notify_all();
    throw;
  }
  ++stats_.allocations;
  stats_.bytes += slab->bytes;
  stats_.peak_bytes = std::max(stats_.peak_bytes, stats_.bytes);
  slots_ += slots;
  attach(std::move(slab));
  set_limits();
  growing_ = false;
  changed_.notify_all();
}

void PoolCore::attach(std::unique_ptr<PoolSlab> slab) {
  slab->leaves = false;
  for (std::size_t i = 0; i < slab->count; ++i) free_.put(slab->slots[i]);
  slabs_.push_back(std::move(slab));
}

// The slab has gone back.
void PoolCore::forget(const PoolSlab& slab) {
  for (std::size_t i = 0; i < slab.count; ++i) free_.expect_fewer(slab.slots[i].stream, 1);
  stats_.bytes -= slab.bytes;
  slots_ -= slab.count;
}

std::size_t PoolCore::trim(std::size_t keep) {
  const Lock lock(mutex_);
  while (trimming_) changed_.wait(mutex_);
  return trim_now(keep);
}

// What cannot come again stays.
std::size_t PoolCore::trim_now(std::size_t keep) {
  if (!ever_grows(options_)) return 0;
  begin_recall();
  std::vector<std::unique_ptr<PoolSlab>> slabs;
  try {
    slabs = detach_free_slabs(keep);
  } catch (...) {
    end_recall();
    throw;
  }
  end_recall();
  return slabs.empty() ? 0 : give_back(std::move(slabs));
}

// A slab that cannot go stays; the first error is thrown when the others have gone.
std::size_t PoolCore::give_back(std::vector<std::unique_ptr<PoolSlab>> slabs) {
  std::size_t bytes = 0;
  std::exception_ptr failure;
  trimming_ = true;
  detached_ = slabs.size();
  {
    const Unlocked unlocked(mutex_);
    for (const auto& slab : slabs) {
      try {
        memory_.deallocate(*slab);
      } catch (...) {
        if (!failure) failure = std::current_exception();
      }
    }
  }
  for (auto& slab : slabs) {
    if (slab->memory != nullptr) {
      attach(std::move(slab));
    } else {
      bytes += slab->bytes;
      forget(*slab);
    }
  }
  detached_ = 0;
  set_limits();
  trimming_ = false;
  changed_.notify_all();
  if (failure) std::rethrow_exception(failure);
  return bytes;
}

void PoolCore::count_free_slots() {
  for (const auto& slab : slabs_) slab->free = 0;
  free_.for_each([](const PoolSlot& slot, StreamKey) { ++slot.slab->free; });
}

// Those made last first. Under a recall.
std::vector<std::unique_ptr<PoolSlab>> PoolCore::detach_free_slabs(std::size_t keep) {
  std::vector<std::unique_ptr<PoolSlab>> leaving;
  leaving.reserve(slabs_.size());
  count_free_slots();
  std::size_t left = free_.size();
  for (std::size_t i = slabs_.size(); i-- > 0;) {
    auto& slab = slabs_[i];
    if (slab->free < slab->count || left < keep + slab->count) continue;
    left -= slab->count;
    slab->leaves = true;
    leaving.push_back(std::move(slab));
  }
  free_.remove_if([](const PoolSlot& slot) { return slot.slab->leaves; });
  std::erase(slabs_, nullptr);
  return leaving;
}

// A release cannot fail: what could not go now goes another time.
void PoolCore::trim_above_high_water() noexcept {
  if (!options_.high_water || closed_ || trimming_ || !memory_.has_allocator()) return;
  const std::size_t keep = *options_.high_water - stacks_may_hold_;  // so many more may come unseen
  if (as_signed(slots_) - live_ <= as_signed(keep)) return;
  try {
    trim_now(keep);
  } catch (const std::exception&) {
  }
}

// --- figures ---------------------------------------------------------------------------------------------------------

void PoolCore::gather() {
  for (const auto& stack : stacks_) gather(stack->live);
  gather(without_stack_);
}

void PoolCore::gather(ThreadSum& sum) {
  if (!sum.has_news()) return;
  const auto news = sum.gather();
  stats_.acquires += static_cast<std::uint64_t>(news.added);
  const std::int64_t highest = std::min(live_ + news.highest, as_signed(slots_));
  stats_.peak_live = std::max(stats_.peak_live, static_cast<std::size_t>(std::max<std::int64_t>(highest, 0)));
  live_ += news.change;
}

PoolStats PoolCore::stats() {
  const Lock lock(mutex_);
  gather();
  PoolStats stats = stats_;
  stats.hits = stats.acquires - std::min(stats.acquires, first_uses_);
  stats.live = static_cast<std::size_t>(std::max<std::int64_t>(live_, 0));
  stats.slots = slots_;
  return stats;
}

std::string PoolCore::validate() {
  const Lock lock(mutex_);
  begin_recall();
  gather();
  std::string broken = first_broken_rule();
  end_recall();
  return broken;
}

std::string PoolCore::first_broken_rule() {
  std::size_t slots = 0;
  std::size_t bytes = 0;
  std::unordered_set<const PoolSlab*> slabs;
  for (const auto& slab : slabs_) {
    slots += slab->count;
    bytes += slab->bytes;
    slabs.insert(slab.get());
  }
  if (slots != slots_) return formatted("{} slots are counted but the slabs have {}", slots_, slots);
  if (bytes != stats_.bytes) return formatted("{} bytes are counted but the slabs have {}", stats_.bytes, bytes);
  std::unordered_set<const PoolSlot*> seen;
  std::string broken;
  free_.for_each([&](const PoolSlot& slot, StreamKey stream) {
    if (!seen.insert(&slot).second) broken = "a slot is free twice";
    if (!slabs.contains(slot.slab)) broken = "a free slot is of no slab";
    if (slot.stream != stream) broken = "a free slot lies with another stream's";
    if (moves_tensors() && *entry_of(slot) != nullptr) broken = "a tensor is in a free slot";
  });
  if (!broken.empty()) return broken;
  if (as_signed(free_.size()) + live_ != as_signed(slots_))
    return formatted("{} slots are free and {} live, of {}", free_.size(), live_, slots_);
  if (free_.expected() != slots_)
    return formatted("the list expects {} slots, and there are {}", free_.expected(), slots_);
  return "";
}

std::size_t PoolCore::metadata_bytes() {
  const Lock lock(mutex_);
  std::size_t bytes =
      sizeof(*this) + free_.metadata_bytes() + memory_.metadata_bytes() + capacity_bytes(slabs_, stacks_, unused_);
  for (const auto& slab : slabs_) {
    bytes += sizeof(PoolSlab) + slab->count * (sizeof(PoolSlot) + (moves_tensors() ? sizeof(PooledTensor*) : 0));
    for (std::size_t i = 0; i < slab->count; ++i) {
      if (const auto& others = slab->slots[i].others) bytes += sizeof(std::vector<StreamKey>) + capacity_bytes(*others);
    }
  }
  return bytes + stacks_.size() * sizeof(SlotStack);
}

}  // namespace cachalot
