// A pool's memory: slabs, each one allocation that is cut into slots; and its figures. Thread safety: none. A slot
// belongs to the tensor, stack or list that it is in; a slab to its pool, under the pool's mutex.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/thread_local_state.h"
#include "cachalot/tensor_pool.h"
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
  void* memory = nullptr;  // the allocator's address; null once it went back
  std::size_t bytes = 0;   // as asked of the allocator
  StreamKey stream;        // that it was asked for
  std::size_t count = 0;
  std::unique_ptr<PoolSlot[]> slots;
  std::size_t free = 0;  // free slots, as SlabList::detach_free counted them last
  bool leaves = false;   // its free slots are being taken from the list
};

// The free slots of a pool that are in no thread's stack, by the stream that used them last.
// Thread safety: none; the pool's mutex guards it.
// A push never allocates: there is a place for every slot of a stream, wherever the slot is, from when it is the
// stream's.
class FreeSlots {
 public:
  // Makes places for `slots` more slots of the stream. Throws std::bad_alloc.
  void reserve(StreamKey stream, std::size_t slots);
  void unreserve(StreamKey stream, std::size_t slots);
  std::size_t reserved(StreamKey stream) const;
  std::size_t reserved() const;  // for all streams

  // Requires: a place for each is reserved.
  void push(PoolSlot& slot);
  void push(std::span<PoolSlot* const> slots);
  // Returns the slot that came last, or null.
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

// The pool's slabs, except those that are detached: they are on their way to the allocator, and may come back. Thread
// safety: none; the pool's mutex guards it, and the list of free slots.
class SlabList {
 public:
  using Slabs = std::vector<std::unique_ptr<PoolSlab>>;

  explicit SlabList(FreeSlots& free) : free_(free) {}

  // Makes room for one more slab, beside the detached ones. Throws std::bad_alloc.
  void reserve_one();
  // Adds a new slab, all of whose slots are free. Requires: reserve_one(), and places for the slots in the list.
  void add(std::unique_ptr<PoolSlab> slab);

  // Takes out wholly free slabs, those made last first, while more than `keep` slots are free. Each comes back by
  // `reattach` or leaves permanently by `forget`. Requires: a recall lasts. Throws std::bad_alloc.
  Slabs detach_free(std::size_t keep);
  void reattach(std::unique_ptr<PoolSlab> slab);
  void forget(const PoolSlab& slab);

  Slabs::const_iterator begin() const { return slabs_.begin(); }
  Slabs::const_iterator end() const { return slabs_.end(); }
  std::size_t size_with_detached() const { return size_; }
  std::size_t metadata_bytes() const;  // beside its own size

 private:
  void count_free();

  FreeSlots& free_;
  Slabs slabs_;
  std::size_t size_ = 0;  // the detached ones included
};

// The counts of a pool: its slots and bytes, its tensors in use, and what it did (PoolStats).
// Thread safety: none; the pool's mutex guards it.
class PoolFigures {
 public:
  void slab_allocated(const PoolSlab& slab) {
    ++stats_.allocations;
    stats_.slots += slab.count;
    stats_.bytes += slab.bytes;
    stats_.peak_bytes = std::max(stats_.peak_bytes, stats_.bytes);
  }
  void slab_deallocated(const PoolSlab& slab) {
    stats_.slots -= slab.count;
    stats_.bytes -= slab.bytes;
  }
  void host_waited() { ++stats_.host_waits; }
  void streams_waited(std::uint64_t waits) { stats_.stream_waits += waits; }
  void slot_used_first() { ++first_uses_; }
  // Adds what a thread acquired and released since the last time.
  void add(const ThreadSum::Gathered& news);

  std::size_t slots() const { return stats_.slots; }
  std::size_t bytes() const { return stats_.bytes; }
  std::int64_t live() const { return live_; }  // as gathered
  PoolStats stats() const;
  // Returns "" or what is wrong. Requires: all threads' sums are gathered, and none changes.
  std::string first_broken_rule() const;

 private:
  PoolStats stats_;  // without `hits` and `live`
  std::uint64_t first_uses_ = 0;
  std::int64_t live_ = 0;
};

CACHALOT_END
