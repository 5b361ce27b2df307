// What a TensorPool is: the slots, and who has them. It outlives the pool while tensors are out.
//
//   acquire  the top of the thread's stack, if it was last used on the same stream; else another in the stack; else,
//            with the mutex, some of the stream's from the list of free slots; else, by the options, one of another
//            stream, or a new slab; else what lies in other threads' stacks, which are recalled; else it waits or fails
//   release  onto the thread's stack, whoever acquired; when that is full, half of it goes to the list first
//
// Invariants: (1) each slot is out, in one stack, or in the list; (2) while recalls_ > 0 all stacks are empty and stay
// so, and so what is free is in the list; (3) a slot's stream is what the list expects it to be; (4) a closed pool
// stays recalled, so that its last tensor finds itself with the mutex held, without a count on the fast path.
//
// Thread safety: try_acquire and try_release by any thread, without the mutex. The others take it, and let it go around
// calls of the allocator and the device: one thread at a time adds a slab (growing_), and one removes some (trimming_).
//
// In a forked child no thread has a stack, so that every call comes to where it is refused; tensors that are released
// there, and the pool's end, do nothing.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/fork_aware.h"
#include "base/mutex.h"
#include "base/thread_parts.h"
#include "cachalot/tensor_pool.h"
#include "pool_memory.h"
#include "slots.h"

namespace cachalot {

class PoolCore final : private ForkAware {
 public:
  using Deadline = std::optional<std::chrono::steady_clock::time_point>;  // empty: whenever one comes back
  enum class IfNone : std::uint8_t { fail, wait };

  PoolCore(const TensorSpec& spec, const TensorPoolOptions& options, std::shared_ptr<CachingAllocator> owned,
           CachingAllocator& allocator, std::shared_ptr<PoolBudget> budget);
  PoolCore(const PoolCore&) = delete;
  PoolCore& operator=(const PoolCore&) = delete;

  // Throws InvalidArgument for options that contradict each other.
  static bool ever_grows(const TensorPoolOptions& options);
  static const TensorPoolOptions& check(const TensorPoolOptions& options);

  // The usual case; nullptr, false: ask the others.
  CACHALOT_FAST_PATH PoolSlot* try_acquire(StreamKey stream);
  CACHALOT_FAST_PATH bool try_release(PoolSlot& slot);
  // nullptr: there was none in time.
  PoolSlot* acquire(Stream stream, IfNone if_none, Deadline deadline = std::nullopt);
  void release(PoolSlot& slot) noexcept;
  void record_stream(PoolSlot& slot, Stream other);
  void share(PoolSlot& slot, Stream other);
  void stream_ends(Stream stream);
  // Once, before anyone acquires.
  void make_initial_slots();
  // The pool goes: the core too, at once or with the last tensor.
  void close();

  // Also while it grows; not while the mutex of another pool is held.
  std::size_t trim(std::size_t keep);
  // Where tensors may be moved; nobody else uses the pool meanwhile.
  CompactReport compact(std::size_t keep);
  bool moves_tensors() const { return options_.mover != nullptr; }
  // Where the tensor that gets the slot is to enter itself; nullptr: nowhere.
  PooledTensor** entry_of(const PoolSlot& slot) const {
    return moves_tensors() ? &slot.slab->tensor_in(slot) : nullptr;
  }
  // For calls that may take the mutex: a forked child must not.
  void require_own_process() const { ForkAware::require_own_process("the pool"); }
  void require_allocator() const {
    require_own_process();
    memory_.require_allocator();
  }
  [[noreturn]] void throw_empty() const;

  const TensorSpec& spec() const { return spec_; }
  const TensorPoolOptions& options() const { return options_; }
  std::size_t tensor_bytes() const { return memory_.tensor_bytes(); }
  PoolStats stats();
  std::string validate();
  std::size_t metadata_bytes();

 private:
  using Parts = ThreadParts<PoolCore, SlotStack>;  // which stack a thread has
  friend Parts;
  struct Hot {  // what a thread used last
    std::uint64_t owner;
    SlotStack* stack;  // not null where the owner is right
  };
  struct Search;
  struct Compaction;
  struct Relocation;

  ~PoolCore();

  PoolSlot* acquire_from_stack(StreamKey stream);
  static void record(PoolSlot& slot, StreamKey other);
  SlotStack* switch_to_registered();
  SlotStack* stack_of_this_thread() CACHALOT_REQUIRES(mutex_);
  SlotStack& register_thread() CACHALOT_REQUIRES(mutex_);
  void retire(SlotStack& stack);
  static void forget_thread() { hot_ = {}; }
  void set_limits() CACHALOT_REQUIRES(mutex_);
  void spill(SlotStack& stack, std::uint32_t left) CACHALOT_REQUIRES(mutex_);

  PoolSlot* search_for(Search& search) CACHALOT_REQUIRES(mutex_);
  void end(Search& search) CACHALOT_REQUIRES(mutex_);
  PoolSlot* find(Search& search) CACHALOT_REQUIRES(mutex_);
  PoolSlot* take_of_stream(StreamKey stream) CACHALOT_REQUIRES(mutex_);
  void refill(SlotStack& stack, StreamKey stream) CACHALOT_REQUIRES(mutex_);
  PoolSlot* take_of_other_stream(Search& search) CACHALOT_REQUIRES(mutex_);
  bool grow_instead_of_waiting(Search& search) CACHALOT_REQUIRES(mutex_);
  bool grow(const Search& search) CACHALOT_REQUIRES(mutex_);
  bool recall_for(Search& search) CACHALOT_REQUIRES(mutex_);
  bool wait(Search& search) CACHALOT_REQUIRES(mutex_);
  bool prepare(PoolSlot& slot, Search& search) CACHALOT_REQUIRES(mutex_);
  void hand_out(PoolSlot& slot, StreamKey stream) CACHALOT_REQUIRES(mutex_);
  bool make_ready(const PoolSlot& slot, Search& search, std::uint64_t& waits);
  void refuse(PoolSlot& slot, Search& search) CACHALOT_REQUIRES(mutex_);
  void put_back_refused(Search& search) CACHALOT_REQUIRES(mutex_);
  bool release_past_stack(PoolSlot& slot) noexcept;  // true: it was the last of a closed pool

  std::size_t may_add() const CACHALOT_REQUIRES(mutex_);
  void add_slab(std::size_t slots, StreamKey stream) CACHALOT_REQUIRES(mutex_);
  void count_free_slots() CACHALOT_REQUIRES(mutex_);
  std::vector<std::unique_ptr<PoolSlab>> detach_free_slabs(std::size_t keep) CACHALOT_REQUIRES(mutex_);
  void attach(std::unique_ptr<PoolSlab> slab) CACHALOT_REQUIRES(mutex_);
  void forget(const PoolSlab& slab) CACHALOT_REQUIRES(mutex_);
  std::size_t trim_now(std::size_t keep) CACHALOT_REQUIRES(mutex_);
  std::size_t give_back(std::vector<std::unique_ptr<PoolSlab>> slabs) CACHALOT_REQUIRES(mutex_);
  void trim_above_high_water() noexcept CACHALOT_REQUIRES(mutex_);

  void move_together(Compaction& compaction, std::size_t keep) CACHALOT_REQUIRES(mutex_);
  std::vector<PoolSlab*> sparse_slabs(std::size_t keep) CACHALOT_REQUIRES(mutex_);
  static bool can_move_all(const PoolSlab& slab);
  void set_aside(Compaction& compaction, const std::vector<PoolSlab*>& slabs) CACHALOT_REQUIRES(mutex_);
  void move_tensors(Compaction& compaction) CACHALOT_REQUIRES(mutex_);
  void move_tensors_of_a_stream(Compaction& compaction, std::span<PoolSlot* const> tensors) CACHALOT_REQUIRES(mutex_);
  void put_in_order(std::vector<Relocation>& relocations, StreamKey stream) CACHALOT_REQUIRES(mutex_);
  void settle(PoolSlot& place, StreamKey stream, bool is_the_streams) CACHALOT_REQUIRES(mutex_);
  void follow_others(std::span<Relocation> relocations, StreamKey stream, std::uint64_t& waits);
  static void hand_over(PoolSlot& from, PoolSlot& to);

  void begin_recall() CACHALOT_REQUIRES(mutex_);
  void end_recall() CACHALOT_REQUIRES(mutex_);
  void notify() CACHALOT_REQUIRES(mutex_);
  std::string first_broken_rule() CACHALOT_REQUIRES(mutex_);
  ThreadSum& live_of_this_thread() { return hot_.owner == id_ ? hot_.stack->live : without_stack_; }
  void gather() CACHALOT_REQUIRES(mutex_);
  void gather(ThreadSum& sum) CACHALOT_REQUIRES(mutex_);

  // Initial-exec: a few bytes, and no call to find them, in shared libraries too.
  [[gnu::tls_model("initial-exec")]] static inline constinit thread_local Hot hot_ = {0, nullptr};

  const TensorSpec spec_;
  const TensorPoolOptions options_;
  PoolMemory memory_;
  const std::uint64_t id_;  // never another's

  SpinMutex mutex_;
  std::condition_variable_any changed_;  // a tensor came back while somebody waits, or the slabs changed
  FreeSlots free_ CACHALOT_GUARDED_BY(mutex_);
  std::vector<std::unique_ptr<PoolSlab>> slabs_ CACHALOT_GUARDED_BY(mutex_);
  std::size_t slots_ CACHALOT_GUARDED_BY(mutex_) = 0;
  std::vector<std::unique_ptr<SlotStack>> stacks_ CACHALOT_GUARDED_BY(mutex_);
  std::vector<SlotStack*> unused_ CACHALOT_GUARDED_BY(mutex_);  // of threads that have ended
  std::size_t stacks_may_hold_ CACHALOT_GUARDED_BY(mutex_) = 0;
  std::size_t recalls_ CACHALOT_GUARDED_BY(mutex_) = 0;
  std::size_t waiters_ CACHALOT_GUARDED_BY(mutex_) = 0;
  bool growing_ CACHALOT_GUARDED_BY(mutex_) = false;
  bool trimming_ CACHALOT_GUARDED_BY(mutex_) = false;
  std::size_t detached_ CACHALOT_GUARDED_BY(mutex_) = 0;  // slabs that may go, or come back
  bool closed_ CACHALOT_GUARDED_BY(mutex_) = false;

  PoolStats stats_ CACHALOT_GUARDED_BY(mutex_);
  std::uint64_t first_uses_ CACHALOT_GUARDED_BY(mutex_) = 0;
  std::int64_t live_ CACHALOT_GUARDED_BY(mutex_) = 0;  // as gathered
  ThreadSum without_stack_;                            // of threads that have none; changed with the mutex held
};

CACHALOT_FAST_PATH PoolSlot* PoolCore::try_acquire(StreamKey stream) {
  if (hot_.owner != id_ || !memory_.has_allocator()) [[unlikely]]
    return nullptr;
  SlotStack& mine = *hot_.stack;
  if (!mine.enter()) [[unlikely]]
    return nullptr;
  if (mine.is_empty() || mine.top().stream != stream || mine.top().attention != 0) [[unlikely]] {
    mine.leave();
    return nullptr;
  }
  PoolSlot& slot = mine.top();
  mine.pop();
  mine.live.add(1);
  mine.leave();
  return &slot;
}

CACHALOT_FAST_PATH bool PoolCore::try_release(PoolSlot& slot) {
  if (hot_.owner != id_) [[unlikely]]
    return false;
  SlotStack& mine = *hot_.stack;
  if (!mine.enter()) [[unlikely]]
    return false;
  if (mine.is_full()) [[unlikely]] {
    mine.leave();
    return false;
  }
  mine.push(slot);
  mine.live.subtract(1);
  mine.leave();
  return true;
}

}  // namespace cachalot
