#include "slots.h"

#include <algorithm>
#include <utility>

namespace cachalot {

bool SlotStack::bring_up(StreamKey stream, bool plain) {
  for (std::uint32_t i = count_; i-- > 0;) {
    if (places_[i]->stream != stream || (plain && places_[i]->attention != 0)) continue;
    std::swap(places_[i], places_[count_ - 1]);
    return true;
  }
  return false;
}

void FreeSlots::expect(StreamKey stream, std::size_t slots) {
  Stack* known = find(stream);
  if (known == nullptr && stacks_.size() >= most_stacks_) forget_streams_without_slots();
  Stack& stack = known != nullptr ? *known : stacks_[stream];
  const std::size_t expected = stack.expected + slots;
  if (expected > stack.slots.capacity()) stack.slots.reserve(std::max(expected, stack.slots.capacity() * 3 / 2));
  stack.expected = expected;
}

// Until there are twice as many as are left.
void FreeSlots::forget_streams_without_slots() {
  std::erase_if(stacks_, [](const auto& entry) { return entry.second.expected == 0; });
  most_stacks_ = std::max(kFewStacks, 2 * stacks_.size());
  last_ = nullptr;
}

void FreeSlots::expect_fewer(StreamKey stream, std::size_t slots) { find(stream)->expected -= slots; }

FreeSlots::Stack* FreeSlots::find(StreamKey stream) {
  if (last_ != nullptr && last_stream_ == stream) return last_;
  const auto found = stacks_.find(stream);
  if (found == stacks_.end()) return nullptr;
  last_ = &found->second;
  last_stream_ = stream;
  return last_;
}

void FreeSlots::put(PoolSlot& slot) {
  Stack& stack = *find(slot.stream);
  CACHALOT_ASSERT(stack.slots.size() < stack.expected);
  stack.slots.push_back(&slot);
  ++size_;
}

PoolSlot* FreeSlots::take(StreamKey stream) {
  Stack* const stack = size_ == 0 ? nullptr : find(stream);
  if (stack == nullptr || stack->slots.empty()) return nullptr;
  PoolSlot* const slot = stack->slots.back();
  stack->slots.pop_back();
  --size_;
  return slot;
}

PoolSlot* FreeSlots::take_any() {
  if (size_ == 0) return nullptr;
  for (const auto& [stream, stack] : stacks_) {
    if (!stack.slots.empty()) return take(stream);
  }
  return nullptr;
}

std::size_t FreeSlots::expected() const {
  std::size_t expected = 0;
  for (const auto& entry : stacks_) expected += entry.second.expected;
  return expected;
}

std::size_t FreeSlots::metadata_bytes() const {
  std::size_t bytes = sizeof(*this);
  for (const auto& entry : stacks_) bytes += sizeof(entry) + entry.second.slots.capacity() * sizeof(PoolSlot*);
  return bytes;
}

}  // namespace cachalot
