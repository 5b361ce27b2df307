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
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <vector>

#include "base/locks.h"
#include "pool_books.h"
#include "slots.h"
#include "thread_stacks.h"

CACHALOT_BEGIN

class PoolSearch {
 public:
  using Deadline = std::optional<std::chrono::steady_clock::time_point>;  // empty: none
  enum class IfNone : std::uint8_t { fail, wait };

  PoolSearch(PoolBooks& books, StreamKey stream, IfNone if_none, Deadline deadline)
      : books_(books), stream_(stream), if_none_(if_none), deadline_(deadline) {}

  // Returns a slot that is the stream's to use now, and counts it as acquired; nullptr: there was none in time. To be
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
  std::optional<bool> captures_;  // whether the stream does; asked when first needed
  bool may_grow_ = true;
  bool has_waited_ = false;
  std::optional<StackRecall> recall_;
  std::vector<PoolSlot*> refused_;  // free, but not for this stream: a capture is in the way
};

CACHALOT_END
