// A pool's memory: slabs, each one allocation cut into slots, and the slots that are free and in no thread's stack.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <unordered_map>
#include <vector>

#include "base/check.h"
#include "base/recallable.h"
#include "base/thread_sum.h"
#include "cachalot/device.h"
#include "device/known_stream.h"

namespace cachalot {

class PooledTensor;
struct PoolSlab;

// One tensor's place. It belongs to whoever holds it: the tensor that is out, the stack or list that it lies in.
struct PoolSlot {
  // Why a taker must look closer, though the slot's stream is his.
  static constexpr std::uint32_t kUnused = 1;        // it was never handed out
  static constexpr std::uint32_t kOtherStreams = 2;  // others have used it, too
  static constexpr std::uint32_t kMustBeFilled = 4;

  StreamKey stream;  // that used it last; of the allocation, if none did
  void* data = nullptr;
  PoolSlab* slab = nullptr;
  // That used it since it was handed out; made when first needed, and kept.
  std::unique_ptr<std::vector<StreamKey>> others;
  std::uint32_t attention = 0;
};
static_assert(sizeof(PoolSlot) <= 40, "with its places in lists and stacks, a slot costs at most 64 bytes");

// Calls visit(stream) for each stream whose work may still use the slot.
template <typename Visit>
void for_each_user(const PoolSlot& slot, Visit&& visit) {
  visit(slot.stream);
  if (slot.others == nullptr) return;
  for (const StreamKey other : *slot.others) visit(other);
}

struct PoolSlab {
  void* memory = nullptr;  // what the allocator gave
  std::size_t bytes = 0;   // as asked of it
  StreamKey stream;        // that it was asked for
  std::size_t count = 0;
  std::unique_ptr<PoolSlot[]> slots;
  // Where tensors may be moved: who has each slot; null for one that is free, or stays where it is.
  std::unique_ptr<PooledTensor*[]> tensors;
  PooledTensor*& tensor_in(const PoolSlot& slot) const {
    return tensors[static_cast<std::size_t>(&slot - slots.get())];
  }
  // For who looks for slabs that are wholly free.
  std::size_t free = 0;
  bool leaves = false;
};

// What one thread keeps of a pool. Used by its thread between enter() and leave(), or by whoever holds the pool's
// mutex: its thread, and anyone who has recalled it.
class alignas(64) SlotStack : public Recallable {
 public:
  static constexpr std::uint32_t kPlaces = 32;

  std::uint32_t count() const { return count_; }
  bool is_empty() const { return count_ == 0; }
  CACHALOT_FAST_PATH bool is_full() const { return count_ >= limit_.load(std::memory_order_relaxed); }
  std::uint32_t limit() const { return limit_.load(std::memory_order_relaxed); }
  // Any thread. Who has more already keeps it until its next release, or a recall.
  void set_limit(std::uint32_t limit) { limit_.store(limit, std::memory_order_relaxed); }

  // Not empty.
  CACHALOT_FAST_PATH PoolSlot& top() const { return *places_[count_ - 1]; }
  CACHALOT_FAST_PATH void pop() { --count_; }
  // Not full.
  CACHALOT_FAST_PATH void push(PoolSlot& slot) { places_[count_++] = &slot; }
  // The one last used on `stream` that lies highest changes places with the top; false: there is none. `plain`: only
  // one that asks for no attention.
  bool bring_up(StreamKey stream, bool plain);
  // The oldest, of which there are so many.
  std::span<PoolSlot* const> lowest(std::uint32_t slots) const { return {places_.data(), slots}; }
  void drop_lowest(std::uint32_t slots) {
    std::copy(places_.begin() + slots, places_.begin() + count_, places_.begin());
    count_ -= slots;
  }

  ThreadSum live;  // tensors that the thread acquired, less those that it returned

 private:
  std::uint32_t count_ = 0;
  std::atomic<std::uint32_t> limit_{0};
  std::array<PoolSlot*, kPlaces> places_;
};

// Free slots by the stream that used them last: those for a stream are found at once. It asks for memory when told to
// expect slots, never when one comes. Not thread-safe; the pool's mutex guards it.
class FreeSlots {
 public:
  // So many more slots have `stream` from now on, wherever they are. Throws std::bad_alloc.
  void expect(StreamKey stream, std::size_t slots);
  void expect_fewer(StreamKey stream, std::size_t slots);

  // Expected.
  void put(PoolSlot& slot);
  // The one that came last; nullptr: none.
  PoolSlot* take(StreamKey stream);
  PoolSlot* take_any();
  std::size_t size() const { return size_; }
  std::size_t expected() const;  // of all streams

  template <typename Visit>
  void for_each(Visit&& visit) const {
    for (const auto& [stream, stack] : stacks_) {
      for (PoolSlot* slot : stack.slots) visit(*slot, stream);
    }
  }
  // Takes out those for which leaves(slot).
  template <typename Leaves>
  void remove_if(Leaves&& leaves) {
    for (auto& [stream, stack] : stacks_) {
      size_ -= std::erase_if(stack.slots, [&](const PoolSlot* slot) { return leaves(*slot); });
    }
  }
  std::size_t metadata_bytes() const;

 private:
  struct Stack {
    std::size_t expected = 0;
    std::vector<PoolSlot*> slots;  // with room for the expected ones
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

}  // namespace cachalot
