// The free slots that threads keep for themselves, so that most acquires and releases need no lock.
//
//   SlotStack     what one thread keeps
//   OwnStack      the way to the calling thread's stack, without a lock
//   ThreadStacks  the stacks of all threads: who has one, how much it may hold, and recalls
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "base/check.h"
#include "base/thread_local_state.h"
#include "pool_slots.h"

CACHALOT_BEGIN

// The slots that one thread keeps of a pool, and how many tensors it has in use: those that it acquired, less those that
// it returned. An acquire takes a slot out and a release puts one in, so the number changes as count() does, by
// `supplied_ - count()`: a release counts nothing, and an acquire only itself.
//
// Thread safety: its thread uses it between enter() and leave(). A thread that holds the pool's mutex uses it, too, if
// it is the thread's own or was recalled; and may call gather() and set_limit() at any time.
class alignas(kCacheLine) SlotStack : public Recallable {
 public:
  // Half a stack goes through the list at once if one thread acquires and another releases. The cost of the mutex and
  // its cache lines is divided by that: with 32 places a tensor took 3 ns more, with 512 as long as with 128.
  static constexpr std::uint32_t kPlaces = 128;

  std::uint32_t count() const { return count_.load(std::memory_order_relaxed); }
  bool is_empty() const { return count() == 0; }
  bool is_full() const { return count() >= limit(); }
  std::uint32_t limit() const { return limit_.load(std::memory_order_relaxed); }
  // Any thread. A stack with more slots keeps them until its thread's next release, or a recall.
  void set_limit(std::uint32_t limit) { limit_.store(limit, std::memory_order_relaxed); }

  // Takes the slot on top out for the thread, if it was last used on the stream and can be handed out as it is.
  // Otherwise changes nothing and returns null.
  CACHALOT_FAST_PATH PoolSlot* acquire(StreamKey stream) {
    const std::uint32_t count = this->count();
    if (count == 0) [[unlikely]]
      return nullptr;
    PoolSlot& slot = *places_[count - 1];
    if (slot.stream != stream || slot.attention != 0) [[unlikely]]
      return nullptr;
    count_.store(count - 1, std::memory_order_relaxed);
    count_acquired(count - 1);
    return &slot;
  }
  // Puts the slot that the thread releases in; false: the stack is full.
  CACHALOT_FAST_PATH bool release(PoolSlot& slot) {
    const std::uint32_t count = this->count();
    if (count >= limit()) [[unlikely]]
      return false;
    places_[count] = &slot;
    count_.store(count + 1, std::memory_order_relaxed);
    return true;
  }
  // The thread has acquired a slot that was not in the stack.
  void acquired_elsewhere() {
    supply(1);
    count_acquired(count());
  }
  // The thread has released a slot that did not come into the stack.
  void released_elsewhere() { supply(-1); }
  // Returns what the thread did since the last gather.
  ThreadSum::Gathered gather();

  // Exchanges the top and the highest slot that was last used on `stream`; false: there is none. `plain`: only a slot
  // that can be handed out as it is.
  bool move_to_top(StreamKey stream, bool plain);
  // Takes the slot on top out; the caller counts it as acquired, or not. Requires: not empty.
  PoolSlot& take_top();
  // Returns the oldest `slots`.
  std::span<PoolSlot* const> oldest(std::uint32_t slots) const { return {places_.data(), slots}; }
  // They went elsewhere.
  void drop_oldest(std::uint32_t slots);
  // The places above the top; the first so many of them are filled, and are the stack's now.
  std::span<PoolSlot*> places_above() { return std::span(places_).subspan(count()); }
  void add_above(std::uint32_t slots);

 private:
  CACHALOT_FAST_PATH void count_acquired(std::uint32_t count) {
    acquired_.store(acquired_.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
    if (const auto left = static_cast<std::int32_t>(count); left < lowest_.load(std::memory_order_relaxed))
      lowest_.store(left, std::memory_order_relaxed);
  }
  // Notes that `slots` came, or (negative) went, otherwise than by the thread's acquires and releases.
  void supply(std::int32_t slots) {
    supplied_ += slots;
    lowest_.store(lowest_.load(std::memory_order_relaxed) + slots, std::memory_order_relaxed);
  }

  std::atomic<std::uint32_t> count_{0};
  std::atomic<std::uint32_t> limit_{0};
  std::atomic<std::int64_t> acquired_{0};
  // The least that count() was since the last gather, as if all that was supplied since had been there: the most tensors
  // that the thread had in use were `supplied_ - lowest_`.
  std::atomic<std::int32_t> lowest_{0};
  // Under the pool's mutex, so not in the line that the thread uses all the time.
  alignas(kCacheLine) std::int64_t supplied_ = 0;
  std::int64_t gathered_ = 0;  // tensors in use, as of the last gather
  std::int64_t gathered_acquired_ = 0;
  std::array<PoolSlot*, kPlaces> places_;
};

// A pool, as threads that end know it (ThreadParts).
class StackOwner {
 public:
  // The calling thread ends. Takes the pool's mutex.
  virtual void retire(SlotStack& stack) = 0;
  static void forget_thread();

 protected:
  ~StackOwner() = default;
};

// The way to the calling thread's stack in one pool.
// Thread safety: any thread; no mutex. A stack that was recalled is refused.
class OwnStack {
 public:
  using Parts = ThreadParts<StackOwner, SlotStack>;

  explicit OwnStack(StackOwner& owner) : pool_(Parts::add_owner(owner)) {}
  // Threads that end do not come to the owner any more. Waits for those on their way; no lock is held that retire()
  // takes.
  void remove_owner() const { Parts::remove_owner(pool_); }

  // Returns the slot on top, if it was last used on the stream and can be handed out as it is; otherwise null.
  CACHALOT_FAST_PATH PoolSlot* try_pop(StreamKey stream) const;
  // Returns false if there is no stack, or no place.
  CACHALOT_FAST_PATH bool try_push(PoolSlot& slot) const;

  // Returns the thread's stack, which is the one last used from now on, or null if it has none.
  SlotStack* find() const { return is_last_used() ? last_used_.stack : look_up(); }
  // Returns whether the thread's stack is the one last used.
  bool is_last_used() const { return last_used_.pool == pool_; }
  // The thread has the stack from now on. Throws std::bad_alloc.
  void assign(SlotStack& stack) const {
    Parts::add(pool_, stack);
    last_used_ = {pool_, &stack};
  }
  static void forget() { last_used_ = {}; }

 private:
  SlotStack* look_up() const;

  struct LastUsed {
    std::uint64_t pool;
    SlotStack* stack;  // not null where the pool is right
  };
  // Initial-exec: a few bytes, and no call to find them, in shared libraries too.
  [[gnu::tls_model("initial-exec")]] static inline constinit thread_local LastUsed last_used_ = {0, nullptr};

  const std::uint64_t pool_;  // no other pool ever has the number
};

// The stacks of all threads of a pool.
// Invariants: while a recall lasts all stacks are empty; together they may hold may_hold() slots.
// Thread safety: none; the pool's mutex guards it, and the list of free slots.
class ThreadStacks {
 public:
  ThreadStacks(const OwnStack& own, FreeSlots& free, std::optional<std::size_t> high_water)
      : own_(own), free_(free), high_water_(high_water) {}

  // Returns the calling thread's stack, which is made when first needed; null for a thread that is ending, if there
  // is no host memory for one, and without asymmetric fences.
  SlotStack* own() {
    SlotStack* const mine = own_.find();
    return mine != nullptr ? mine : make_own();
  }
  // The thread ends. Its stack, and what it has counted, are kept for another.
  void retire(SlotStack& stack);
  // Divides the pool's slots among the threads.
  void set_pool_slots(std::size_t slots);
  std::size_t may_hold() const { return may_hold_; }

  // Moves the oldest slots to the list, until `left` remain. Requires: the stack is the thread's own, or recalled.
  void spill(SlotStack& stack, std::uint32_t left);
  void spill_own();
  // Fills the stack with slots of the stream from the list, up to half of its limit.
  void refill(SlotStack& stack, StreamKey stream);

  bool is_recalled() const { return recalls_ > 0; }
  // The calling thread has acquired, or released, a slot that is in no stack.
  void count_acquired();
  void count_released();
  // Brings the figures up to date with all threads.
  void gather(PoolFigures& figures);

  std::size_t metadata_bytes() const;  // beside its own size
  // Returns "" or what is wrong in a pool of `slots`. Requires: a recall lasts.
  std::string first_broken_rule(std::size_t slots) const;

 private:
  friend class StackRecall;
  SlotStack* make_own();
  SlotStack& register_thread();
  std::size_t threads() const { return std::max<std::size_t>(stacks_.size() - unused_.size(), 1); }
  std::uint32_t share() const;
  void begin_recall();
  void end_recall();

  const OwnStack& own_;
  FreeSlots& free_;
  const std::optional<std::size_t> high_water_;
  std::vector<std::unique_ptr<SlotStack>> stacks_;
  std::vector<SlotStack*> unused_;  // of threads that have ended
  std::size_t pool_slots_ = 0;
  std::size_t may_hold_ = 0;
  std::size_t recalls_ = 0;
  ThreadSum without_stack_;  // of the threads that have none
};

// A recall: the slots of all stacks come into the list, and threads use no stack until it ends.
// Thread safety: the pool's mutex is held when a recall begins and when it ends.
class StackRecall {
 public:
  explicit StackRecall(ThreadStacks& stacks) : stacks_(stacks) { stacks_.begin_recall(); }
  ~StackRecall() { stacks_.end_recall(); }
  StackRecall(const StackRecall&) = delete;
  StackRecall& operator=(const StackRecall&) = delete;

 private:
  ThreadStacks& stacks_;
};

CACHALOT_FAST_PATH PoolSlot* OwnStack::try_pop(StreamKey stream) const {
  if (!is_last_used()) [[unlikely]]
    return nullptr;
  SlotStack& mine = *last_used_.stack;
  if (!mine.enter()) [[unlikely]]
    return nullptr;
  PoolSlot* const slot = mine.acquire(stream);
  mine.leave();
  return slot;
}

CACHALOT_FAST_PATH bool OwnStack::try_push(PoolSlot& slot) const {
  if (!is_last_used()) [[unlikely]]
    return false;
  SlotStack& mine = *last_used_.stack;
  if (!mine.enter()) [[unlikely]]
    return false;
  const bool has_place = mine.release(slot);
  mine.leave();
  return has_place;
}

CACHALOT_END
