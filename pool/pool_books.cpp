#include "pool_books.h"

#include <algorithm>
#include <exception>
#include <string>
#include <unordered_map>
#include <unordered_set>

#include "base/bytes.h"
#include "base/format.h"

CACHALOT_BEGIN

bool ever_grows(const TensorPoolOptions& options) {
  return options.when_empty == WhenEmpty::grow || (options.when_empty == WhenEmpty::wait && options.max_slots != 0);
}

std::size_t next_slab_slots(const PoolBooks& books) {
  const TensorPoolOptions& options = books.options;
  if (!ever_grows(options)) return 0;
  if (options.max_slots == 0) return options.growth_step;
  return std::min(options.growth_step, options.max_slots - books.figures.slots());
}

// Everything that can fail comes before the slab is the pool's.
void add_slab(PoolBooks& books, std::size_t slots, StreamKey stream) {
  books.memory.require_fits(slots);
  books.slabs.reserve_one();
  books.free.reserve(stream, slots);
  books.growing = true;
  std::unique_ptr<PoolSlab> slab;
  try {
    const Unlocked unlocked(books.mutex);
    slab = books.memory.allocate(slots, stream);
  } catch (...) {
    books.free.unreserve(stream, slots);
    books.growing = false;
    books.changed.notify_all();
    throw;
  }
  books.figures.slab_allocated(*slab);
  books.slabs.add(std::move(slab));
  books.stacks.set_pool_slots(books.figures.slots());
  books.growing = false;
  books.changed.notify_all();
}

namespace {

// A slab that the allocator refuses stays; the first error is thrown when the others have gone.
std::size_t deallocate_detached(PoolBooks& books, SlabList::Slabs slabs) CACHALOT_REQUIRES(books.mutex) {
  std::size_t bytes = 0;
  std::exception_ptr failure;
  books.trimming = true;
  {
    const Unlocked unlocked(books.mutex);
    for (const auto& slab : slabs) {
      try {
        books.memory.deallocate(*slab);
      } catch (...) {
        if (!failure) failure = std::current_exception();
      }
    }
  }
  for (auto& slab : slabs) {
    if (slab->memory != nullptr) {
      books.slabs.reattach(std::move(slab));
    } else {
      bytes += slab->bytes;
      books.slabs.forget(*slab);
      books.figures.slab_deallocated(*slab);
    }
  }
  books.stacks.set_pool_slots(books.figures.slots());
  books.trimming = false;
  books.changed.notify_all();
  if (failure) std::rethrow_exception(failure);
  return bytes;
}

SlabList::Slabs detach_free_slabs(PoolBooks& books, std::size_t keep) CACHALOT_REQUIRES(books.mutex) {
  const StackRecall recall(books.stacks);
  return books.slabs.detach_free(keep);
}

}  // namespace

// A pool that never grows keeps what it has: it could not come back.
std::size_t trim_slabs(PoolBooks& books, std::size_t keep) {
  if (!ever_grows(books.options)) return 0;
  SlabList::Slabs slabs = detach_free_slabs(books, keep);
  return slabs.empty() ? 0 : deallocate_detached(books, std::move(slabs));
}

void trim_above_high_water(PoolBooks& books) noexcept {
  const std::optional<std::size_t>& high_water = books.options.high_water;
  if (!high_water || books.closed || books.trimming || !books.memory.has_allocator()) return;
  const std::size_t keep = *high_water - books.stacks.may_hold();  // this number of slots may become free unseen
  if (as_signed(books.figures.slots()) - books.figures.live() <= as_signed(keep)) return;
  try {
    trim_slabs(books, keep);
  } catch (const std::exception&) {
  }
}

// The comparisons of a pool's validate(): everything that PoolBooks holds twice.

namespace {

// The slots that the slabs have, beside those that the list has.
struct Census {
  std::unordered_set<const PoolSlot*> free;
  std::size_t slabs = 0;
  std::size_t slots = 0;
  std::size_t bytes = 0;
  std::unordered_map<StreamKey, std::size_t> slots_of_stream;
};

// "" as in first_broken_rule.
std::string check_users(const PoolSlot& slot) {
  const std::size_t others = slot.others == nullptr ? 0 : slot.others->size();
  if (slot.has_other_users() != (others > 0))
    return formatted("a slot names {} other streams, and its flag says otherwise", others);
  std::unordered_set<StreamKey> users;
  std::string broken;
  for_each_user(slot, [&](StreamKey user) {
    if (!users.insert(user).second) broken = "a slot names a stream twice";
  });
  return broken;
}

std::string check_slot(const PoolSlot& slot, bool is_free) {
  const bool is_unused = (slot.attention & PoolSlot::kUnused) != 0;
  if (is_unused && !is_free) return "a slot in use counts as never used";
  if (is_unused && slot.has_other_users()) return "a slot that was never used names other streams";
  return check_users(slot);
}

std::string check_slab(const PoolSlab& slab, const PoolMemory& memory, Census& census) {
  if (std::string broken = memory.first_broken_rule(slab); !broken.empty()) return broken;
  if (slab.leaves) return "a slab that stays is marked as leaving";
  ++census.slabs;
  census.slots += slab.count;
  census.bytes += slab.bytes;
  for (std::size_t i = 0; i < slab.count; ++i) {
    const PoolSlot& slot = slab.slots[i];
    ++census.slots_of_stream[slot.stream];
    if (std::string broken = check_slot(slot, census.free.contains(&slot)); !broken.empty()) return broken;
  }
  return "";
}

// The list has a place for each slot under its stream.
std::string check_places(const FreeSlots& free, const Census& census) {
  for (const auto& [stream, slots] : census.slots_of_stream) {
    if (free.reserved(stream) != slots)
      return formatted("the list has places for {} slots of a stream with {}", free.reserved(stream), slots);
  }
  if (free.reserved() != census.slots)
    return formatted("the list has places for {} slots, and there are {}", free.reserved(), census.slots);
  return "";
}

std::string check_figures(const PoolFigures& figures, const Census& census) {
  if (census.slots != figures.slots())
    return formatted("{} slots are counted but the slabs have {}", figures.slots(), census.slots);
  if (census.bytes != figures.bytes())
    return formatted("{} bytes are counted but the slabs have {}", figures.bytes(), census.bytes);
  if (as_signed(census.free.size()) + figures.live() != as_signed(census.slots))
    return formatted("{} slots are free and {} live, of {}", census.free.size(), figures.live(), census.slots);
  return figures.first_broken_rule();
}

// The slots of the list, each once.
std::string list_free(const FreeSlots& free, const SlabList& slabs, Census& census) {
  std::unordered_set<const PoolSlab*> known;
  for (const auto& slab : slabs) known.insert(slab.get());
  std::string broken;
  free.for_each([&](const PoolSlot& slot) {
    if (!census.free.insert(&slot).second) broken = "a slot is free twice";
    if (!known.contains(slot.slab)) broken = "a free slot is of no slab";
  });
  return broken.empty() ? free.first_broken_rule() : broken;
}

}  // namespace

std::string first_broken_rule(PoolBooks& books) {
  const StackRecall recall(books.stacks);
  books.stacks.gather(books.figures);
  if (books.growing || books.trimming || books.waiters > 0) return "a thread is said to be in the pool";
  if (std::string broken = books.stacks.first_broken_rule(books.figures.slots()); !broken.empty()) return broken;
  Census census;
  if (std::string broken = list_free(books.free, books.slabs, census); !broken.empty()) return broken;
  for (const auto& slab : books.slabs) {
    if (std::string broken = check_slab(*slab, books.memory, census); !broken.empty()) return broken;
  }
  if (census.slabs != books.slabs.size_with_detached())
    return formatted("{} slabs are counted, and there are {}", books.slabs.size_with_detached(), census.slabs);
  if (std::string broken = check_places(books.free, census); !broken.empty()) return broken;
  return check_figures(books.figures, census);
}

CACHALOT_END
