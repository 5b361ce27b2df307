// The free slots of a pool that are in no thread's stack, by the stream that used them last.
// Thread safety: none; the pool's mutex guards it.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "slots.h"

CACHALOT_BEGIN

// A push never allocates: there is a place for every slot of a stream, wherever the slot is, from when it is the
// stream's.
class FreeSlots {
 public:
  // Makes places for so many more slots of the stream. Throws std::bad_alloc.
  void reserve(StreamKey stream, std::size_t slots);
  void unreserve(StreamKey stream, std::size_t slots);
  std::size_t reserved(StreamKey stream) const;
  std::size_t reserved() const;  // for all streams

  // Requires: a place for each is reserved.
  void push(PoolSlot& slot);
  void push(std::span<PoolSlot* const> slots);
  // Returns the slot that came last; nullptr: none.
  PoolSlot* pop(StreamKey stream);
  PoolSlot* pop_any();
  // Moves the slots of the stream that came last to the front of `places`, in the order in which they came. Returns how
  // many: as many as there are places, or slots.
  std::size_t pop(StreamKey stream, std::span<PoolSlot*> places);
  std::size_t size() const { return size_; }

  template <typename Visit>
  void for_each(Visit&& visit) const {
    for (const auto& [stream, stack] : stacks_) {
      for (PoolSlot* slot : stack.slots) visit(*slot);
    }
  }
  // Removes the slots of slabs that are marked as leaving.
  void remove_leaving();

  std::size_t metadata_bytes() const;  // beside its own size
  // Returns "" or what is wrong.
  std::string first_broken_rule() const;

 private:
  struct Stack {
    std::size_t reserved = 0;
    std::vector<PoolSlot*> slots;  // with room for the reserved ones
  };
  static constexpr std::size_t kFewStacks = 64;
  Stack* find(StreamKey stream);
  void forget_streams_without_slots();

  std::unordered_map<StreamKey, Stack> stacks_;
  Stack* last_ = nullptr;  // looked up, and for which stream: batches are of one
  StreamKey last_stream_;
  std::size_t size_ = 0;
  std::size_t most_stacks_ = kFewStacks;
};

CACHALOT_END
