// The inside of a TensorPool, which outlives it while tensors are in use: the fast path of acquire and release, and the
// way to the operations that take the mutex.
//
// Thread safety: try_acquire and try_release by any thread, without the mutex. The others take it.
//
// In a forked child no thread has a stack, so every call comes to where it is refused; a release there, and the pool's
// destruction, do nothing.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "base/check.h"
#include "base/locks.h"
#include "base/process.h"
#include "cachalot/tensor_pool.h"
#include "pool_books.h"
#include "pool_slots.h"
#include "thread_stacks.h"

CACHALOT_BEGIN

// The search for a slot that the calling thread's own stack does not have on top. In this order:
//
//   1. a slot of the thread's stack, or of the list, that the same stream used last
//   2. with OtherStream::other_slot, a new slab
//   3. a slot that another stream used last, whose work the stream then waits for on the GPU
//   4. a new slab
//   5. the same again, after all stacks were recalled
//   6. a slot that is released, if the search may wait; otherwise none
//
// Thread safety: a search is its thread's own. It takes the pool's mutex, and lets it go around calls of the allocator
// and of the device.
class PoolSearch {
 public:
  using Deadline = std::optional<std::chrono::steady_clock::time_point>;  // empty: none
  enum class IfNone : std::uint8_t { fail, wait };

  PoolSearch(PoolBooks& books, StreamKey stream, IfNone if_none, Deadline deadline)
      : books_(books), stream_(stream), if_none_(if_none), deadline_(deadline) {}

  // Returns a slot that the stream may use now, and counts it as acquired; or null if there was none in time. To be
  // called once. After an error the pool is as before.
  PoolSlot* run() CACHALOT_EXCLUDES(books_.mutex);

 private:
  PoolSlot* find_usable() CACHALOT_REQUIRES(books_.mutex);
  PoolSlot* find() CACHALOT_REQUIRES(books_.mutex);
  PoolSlot* find_of_same_stream() CACHALOT_REQUIRES(books_.mutex);
  PoolSlot* find_of_other_stream() CACHALOT_REQUIRES(books_.mutex);
  bool grow_instead_of_waiting() CACHALOT_REQUIRES(books_.mutex);
  bool grow() CACHALOT_REQUIRES(books_.mutex);
  bool recall_once() CACHALOT_REQUIRES(books_.mutex);
  bool await_release() CACHALOT_REQUIRES(books_.mutex);
  bool make_usable(PoolSlot& slot) CACHALOT_REQUIRES(books_.mutex);
  bool queue_waits_and_fill(const PoolSlot& slot, std::uint64_t& waits);
  bool captures();
  void count_as_acquired(PoolSlot& slot) CACHALOT_REQUIRES(books_.mutex);
  void keep_refused(PoolSlot& slot) CACHALOT_REQUIRES(books_.mutex);
  void free_refused() CACHALOT_REQUIRES(books_.mutex);
  void finish(const PoolSlot* found) CACHALOT_REQUIRES(books_.mutex);

  PoolBooks& books_;
  const StreamKey stream_;
  const IfNone if_none_;
  const Deadline deadline_;
  std::optional<bool> captures_;  // true if the stream does; asked when first needed
  bool may_grow_ = true;
  bool has_waited_ = false;
  std::optional<StackRecall> recall_;
  std::vector<PoolSlot*> refused_;  // free, but not for this stream: a capture is in the way
};

class PoolCore final : private ForkAware, private StackOwner {
 public:
  using Deadline = PoolSearch::Deadline;
  using IfNone = PoolSearch::IfNone;

  PoolCore(const TensorSpec& spec, const TensorPoolOptions& options, std::shared_ptr<CachingAllocator> owned,
           CachingAllocator& allocator, std::shared_ptr<PoolBudget> budget);
  PoolCore(const PoolCore&) = delete;
  PoolCore& operator=(const PoolCore&) = delete;

  // Throws InvalidArgument for options that contradict each other.
  static const TensorPoolOptions& check(const TensorPoolOptions& options);

  // The usual case. nullptr, false: acquire and release have to be called.
  CACHALOT_FAST_PATH PoolSlot* try_acquire(StreamKey stream) const {
    return books_.memory.has_allocator() ? own_stack_.try_pop(stream) : nullptr;
  }
  CACHALOT_FAST_PATH bool try_release(PoolSlot& slot) const { return own_stack_.try_push(slot); }
  // Returns nullptr if there was no slot in time.
  PoolSlot* acquire(Stream stream, IfNone if_none, Deadline deadline = std::nullopt);
  // Destroys a closed pool with the last of its tensors.
  void release(PoolSlot& slot) noexcept;
  void record_stream(PoolSlot& slot, Stream other);
  void share(PoolSlot& slot, Stream other);
  void stream_ends(Stream stream);
  // To be called once, before any acquire.
  void make_initial_slots();
  // The pool is destroyed; the core is, too, now or with the last tensor.
  void close();

  // May be called while the pool grows; not while the mutex of another pool is held.
  std::size_t trim(std::size_t keep);

  // For calls that may take the mutex, which a forked child must not.
  void require_own_process() const { ForkAware::require_own_process("the pool"); }
  void require_allocator() const;
  [[noreturn]] void throw_empty() const;

  const TensorSpec& spec() const { return spec_; }
  const TensorPoolOptions& options() const { return books_.options; }
  std::size_t tensor_bytes() const { return books_.memory.tensor_bytes(); }
  PoolStats stats();
  std::string validate();
  std::size_t metadata_bytes();

 private:
  ~PoolCore();

  PoolSlot* acquire_from_stack(StreamKey stream);
  bool release_to_stack(PoolSlot& slot) noexcept;
  bool release_with_mutex(PoolSlot& slot) noexcept;
  void retire(SlotStack& stack) override;

  const TensorSpec spec_;
  PoolBooks books_;
  alignas(kCacheLine) const OwnStack own_stack_;  // away from what changes under the mutex: each fast path reads it
};

CACHALOT_END
