#include "pool_slots.h"

#include <algorithm>
#include <utility>

#include "base/bytes.h"
#include "base/check.h"
#include "base/format.h"

CACHALOT_BEGIN

void PoolSlot::record_user(StreamKey user) {
  if (user == stream) return;
  if (others == nullptr) others = std::make_unique<std::vector<StreamKey>>();
  if (std::ranges::find(*others, user) == others->end()) others->push_back(user);
  attention |= kOtherStreams;
}

void FreeSlots::reserve(StreamKey stream, std::size_t slots) {
  Stack* known = find(stream);
  if (known == nullptr && stacks_.size() >= most_stacks_) forget_streams_without_slots();
  Stack& stack = known != nullptr ? *known : stacks_[stream];
  const std::size_t reserved = stack.reserved + slots;
  if (reserved > stack.slots.capacity()) stack.slots.reserve(std::max(reserved, stack.slots.capacity() * 3 / 2));
  stack.reserved = reserved;
}

// Until there are twice as many as are left.
void FreeSlots::forget_streams_without_slots() {
  std::erase_if(stacks_, [](const auto& entry) { return entry.second.reserved == 0; });
  most_stacks_ = std::max(kFewStacks, 2 * stacks_.size());
  last_ = nullptr;
}

void FreeSlots::unreserve(StreamKey stream, std::size_t slots) { find(stream)->reserved -= slots; }

FreeSlots::Stack* FreeSlots::find(StreamKey stream) {
  if (last_ != nullptr && last_stream_ == stream) return last_;
  const auto found = stacks_.find(stream);
  if (found == stacks_.end()) return nullptr;
  last_ = &found->second;
  last_stream_ = stream;
  return last_;
}

void FreeSlots::push(PoolSlot& slot) {
  Stack& stack = *find(slot.stream);
  CACHALOT_ASSERT(stack.slots.size() < stack.reserved);
  stack.slots.push_back(&slot);
  ++size_;
}

// Slots of one stream mostly lie together.
void FreeSlots::push(std::span<PoolSlot* const> slots) {
  for (auto first = slots.begin(); first != slots.end();) {
    const StreamKey stream = (*first)->stream;
    const auto end = std::find_if(first, slots.end(), [&](const PoolSlot* slot) { return slot->stream != stream; });
    Stack& stack = *find(stream);
    CACHALOT_ASSERT(stack.slots.size() + static_cast<std::size_t>(end - first) <= stack.reserved);
    stack.slots.insert(stack.slots.end(), first, end);
    first = end;
  }
  size_ += slots.size();
}

PoolSlot* FreeSlots::pop(StreamKey stream) {
  Stack* const stack = size_ == 0 ? nullptr : find(stream);
  if (stack == nullptr || stack->slots.empty()) return nullptr;
  PoolSlot* const slot = stack->slots.back();
  stack->slots.pop_back();
  --size_;
  return slot;
}

std::size_t FreeSlots::pop(StreamKey stream, std::span<PoolSlot*> places) {
  Stack* const stack = size_ == 0 ? nullptr : find(stream);
  if (stack == nullptr) return 0;
  const std::size_t slots = std::min(places.size(), stack->slots.size());
  const auto first = stack->slots.end() - static_cast<std::ptrdiff_t>(slots);
  std::copy(first, stack->slots.end(), places.begin());
  stack->slots.erase(first, stack->slots.end());
  size_ -= slots;
  return slots;
}

PoolSlot* FreeSlots::pop_any() {
  if (size_ == 0) return nullptr;
  for (const auto& [stream, stack] : stacks_) {
    if (!stack.slots.empty()) return pop(stream);
  }
  return nullptr;
}

void FreeSlots::remove_leaving() {
  for (auto& [stream, stack] : stacks_) {
    size_ -= std::erase_if(stack.slots, [](const PoolSlot* slot) { return slot->slab->leaves; });
  }
}

std::size_t FreeSlots::reserved(StreamKey stream) const {
  const auto found = stacks_.find(stream);
  return found == stacks_.end() ? 0 : found->second.reserved;
}

std::size_t FreeSlots::reserved() const {
  std::size_t reserved = 0;
  for (const auto& entry : stacks_) reserved += entry.second.reserved;
  return reserved;
}

std::size_t FreeSlots::metadata_bytes() const {
  std::size_t bytes = 0;
  for (const auto& entry : stacks_) bytes += sizeof(entry) + entry.second.slots.capacity() * sizeof(PoolSlot*);
  return bytes;
}

std::string FreeSlots::first_broken_rule() const {
  std::size_t size = 0;
  for (const auto& [stream, stack] : stacks_) {
    size += stack.slots.size();
    if (stack.slots.size() > stack.reserved)
      return formatted("{} free slots of a stream have {} places", stack.slots.size(), stack.reserved);
    if (stack.reserved > stack.slots.capacity())
      return formatted("a stream's list has room for {} slots, not for {}", stack.slots.capacity(), stack.reserved);
    for (const PoolSlot* slot : stack.slots) {
      if (slot->stream != stream) return "a free slot lies with another stream's";
    }
  }
  if (size != size_) return formatted("{} free slots are counted, and there are {}", size_, size);
  if (last_ != nullptr && (!stacks_.contains(last_stream_) || &stacks_.at(last_stream_) != last_))
    return "the stream looked up last is remembered wrongly";
  return "";
}

void SlabList::reserve_one() {
  const std::size_t size = size_ + 1;
  if (size > slabs_.capacity()) slabs_.reserve(2 * size);
}

void SlabList::add(std::unique_ptr<PoolSlab> slab) {
  ++size_;
  reattach(std::move(slab));
}

void SlabList::reattach(std::unique_ptr<PoolSlab> slab) {
  slab->leaves = false;
  for (std::size_t i = 0; i < slab->count; ++i) free_.push(slab->slots[i]);
  slabs_.push_back(std::move(slab));
}

void SlabList::forget(const PoolSlab& slab) {
  for (std::size_t i = 0; i < slab.count; ++i) free_.unreserve(slab.slots[i].stream, 1);
  --size_;
}

void SlabList::count_free() {
  for (const auto& slab : slabs_) slab->free = 0;
  free_.for_each([](const PoolSlot& slot) { ++slot.slab->free; });
}

SlabList::Slabs SlabList::detach_free(std::size_t keep) {
  Slabs detached;
  detached.reserve(slabs_.size());
  count_free();
  std::size_t left = free_.size();
  for (std::size_t i = slabs_.size(); i-- > 0;) {
    auto& slab = slabs_[i];
    if (slab->free < slab->count || left < keep + slab->count) continue;
    left -= slab->count;
    slab->leaves = true;
    detached.push_back(std::move(slab));
  }
  free_.remove_leaving();
  std::erase(slabs_, nullptr);
  return detached;
}

std::size_t SlabList::metadata_bytes() const {
  std::size_t bytes = capacity_bytes(slabs_);
  for (const auto& slab : slabs_) {
    bytes += sizeof(PoolSlab) + slab->count * sizeof(PoolSlot);
    for (std::size_t i = 0; i < slab->count; ++i) {
      if (const auto& others = slab->slots[i].others) bytes += sizeof(std::vector<StreamKey>) + capacity_bytes(*others);
    }
  }
  return bytes;
}

void PoolFigures::add(const ThreadSum::Gathered& news) {
  stats_.acquires += static_cast<std::uint64_t>(news.added);
  const std::int64_t highest = std::min(live_ + news.highest, as_signed(stats_.slots));
  stats_.peak_live = std::max(stats_.peak_live, static_cast<std::size_t>(std::max<std::int64_t>(highest, 0)));
  live_ += news.change;
}

PoolStats PoolFigures::stats() const {
  PoolStats stats = stats_;
  stats.hits = stats.acquires - std::min(stats.acquires, first_uses_);
  stats.live = static_cast<std::size_t>(std::max<std::int64_t>(live_, 0));
  return stats;
}

std::string PoolFigures::first_broken_rule() const {
  if (live_ < 0 || live_ > as_signed(stats_.slots))
    return formatted("{} tensors are live in {} slots", live_, stats_.slots);
  if (as_signed(stats_.peak_live) < live_)
    return formatted("at most {} tensors were live, and {} are", stats_.peak_live, live_);
  if (stats_.peak_bytes < stats_.bytes)
    return formatted("the peak is {} bytes, and there are {}", stats_.peak_bytes, stats_.bytes);
  if (stats_.acquires < first_uses_)
    return formatted("{} slots were used first in {} acquires", first_uses_, stats_.acquires);
  return "";
}

CACHALOT_END
