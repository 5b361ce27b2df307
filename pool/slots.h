// A pool's memory: slabs, each one allocation that is cut into slots. Thread safety: none. A slot belongs to the
// tensor, stack or list that it is in; a slab to its pool, under the pool's mutex.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "device/known_stream.h"

CACHALOT_BEGIN

struct PoolSlab;

// The memory of one tensor.
// Invariant: kOtherStreams is set if and only if `others` names a stream.
struct PoolSlot {
  // The reasons for which a slot cannot be handed out as it is, even to the stream that used it last.
  static constexpr std::uint32_t kUnused = 1;        // it was never handed out
  static constexpr std::uint32_t kOtherStreams = 2;  // other streams have used it, too
  static constexpr std::uint32_t kMustBeFilled = 4;

  // Adds a stream whose work uses the slot. Throws std::bad_alloc.
  void record_user(StreamKey user);
  // All work on the slot so far comes before the work of `user` from now on.
  void set_only_user(StreamKey user) {
    stream = user;
    if (others != nullptr) others->clear();
    attention &= ~kOtherStreams;
  }
  bool has_other_users() const { return (attention & kOtherStreams) != 0; }

  // First what an acquire reads, so that it seldom lies in two cache lines.
  StreamKey stream;  // that used it last; of the allocation, if none did
  void* data = nullptr;
  std::uint32_t attention = 0;
  PoolSlab* slab = nullptr;
  // The streams that used it beside `stream` since it was handed out; made when first needed, and kept.
  std::unique_ptr<std::vector<StreamKey>> others;
};
static_assert(sizeof(PoolSlot) <= 40, "with its places in lists and stacks, a slot costs at most 64 bytes");

// Calls visit(stream) for each stream whose work may still use the slot.
template <typename Visit>
void for_each_user(const PoolSlot& slot, Visit&& visit) {
  visit(slot.stream);
  if (slot.others == nullptr) return;
  for (const StreamKey other : *slot.others) visit(other);
}

// One allocation, and its slots.
struct PoolSlab {
  void* memory = nullptr;  // what the allocator returned; null once it went back
  std::size_t bytes = 0;   // as asked of the allocator
  StreamKey stream;        // that it was asked for
  std::size_t count = 0;
  std::unique_ptr<PoolSlot[]> slots;
  std::size_t free = 0;  // free slots, as SlabList::detach_free counted them last
  bool leaves = false;   // its free slots are being taken from the list
};

CACHALOT_END
