// The state of a pool, and the lock that guards it. PoolCore owns it; the operations on it (PoolSearch, growing and trimming)
// take it by reference.
//
// Invariants, while the mutex is free: (1) each slot is with a tensor, in one thread's stack, or in the list of free
// slots; (2) while a recall lasts all stacks are empty, and so all free slots are in the list; (3) the list has a place
// for every slot under the stream that the slot names; (4) a closed pool stays recalled, so that the release of its
// last tensor takes the mutex and sees that it is the last, without a count on the fast path.
//
// Thread safety: the mutex is held, except for `memory`, which needs none. Operations release it around calls of the
// allocator and of the device; meanwhile one thread adds a slab (growing), and one removes slabs (trimming).
#pragma once

#include <condition_variable>
#include <cstddef>
#include <memory>
#include <optional>
#include <utility>

#include "base/locks.h"
#include "cachalot/tensor_pool.h"
#include "pool_memory.h"
#include "pool_slots.h"
#include "thread_stacks.h"

CACHALOT_BEGIN

struct PoolBooks {
  PoolBooks(const TensorSpec& spec, const TensorPoolOptions& pool_options, const OwnStack& own,
            std::shared_ptr<CachingAllocator> owned, CachingAllocator& allocator, std::shared_ptr<PoolBudget> budget)
      : options(pool_options),
        memory(std::move(owned), allocator, spec, pool_options, std::move(budget)),
        stacks(own, free, pool_options.high_water) {}
  PoolBooks(const PoolBooks&) = delete;
  PoolBooks& operator=(const PoolBooks&) = delete;

  // Wakes the threads that wait for a tensor.
  void notify_waiters() CACHALOT_REQUIRES(mutex) {
    if (waiters > 0) changed.notify_all();
  }
  // Blocks while another thread removes slabs.
  void await_trimming() CACHALOT_REQUIRES(mutex) {
    while (trimming) changed.wait(mutex);
  }

  const TensorPoolOptions options;
  PoolMemory memory;

  SpinMutex mutex;
  std::condition_variable_any changed;  // a tensor came back while a thread waits, or the slabs changed
  FreeSlots free CACHALOT_GUARDED_BY(mutex);
  SlabList slabs CACHALOT_GUARDED_BY(mutex){free};
  ThreadStacks stacks CACHALOT_GUARDED_BY(mutex);
  PoolFigures figures CACHALOT_GUARDED_BY(mutex);
  std::size_t waiters CACHALOT_GUARDED_BY(mutex) = 0;
  bool growing CACHALOT_GUARDED_BY(mutex) = false;
  bool trimming CACHALOT_GUARDED_BY(mutex) = false;
  // Not empty: the pool is destroyed, and tensors are still in use.
  std::optional<StackRecall> closed CACHALOT_GUARDED_BY(mutex);
};

// Returns "" or the first invariant that does not hold. Asks the allocator. Requires: no other thread uses the pool.
std::string first_broken_rule(PoolBooks& books) CACHALOT_REQUIRES(books.mutex);

// Growing and trimming: the changes of a pool's slabs.
// Thread safety: the pool's mutex is held. Functions let it go around calls of the allocator, where they say so.
bool ever_grows(const TensorPoolOptions& options);

// Returns the slots that the next slab may have; 0: the pool may not grow.
std::size_t next_slab_slots(const PoolBooks& books) CACHALOT_REQUIRES(books.mutex);

// Adds a slab of free slots. Lets the mutex go. Requires: no other thread grows the pool.
// Throws what the allocator throws; nothing has changed then.
void add_slab(PoolBooks& books, std::size_t slots, StreamKey stream) CACHALOT_REQUIRES(books.mutex);

// Returns wholly free slabs to the allocator while more than `keep` slots are free. Returns their bytes. Lets the mutex
// go. Requires: no other thread trims. Throws the first error of the allocator; slabs that it refused stay the pool's.
std::size_t trim_slabs(PoolBooks& books, std::size_t keep) CACHALOT_REQUIRES(books.mutex);

// Trims down to the high-water mark, if the pool has one. A failed release is left for a later call.
void trim_above_high_water(PoolBooks& books) noexcept CACHALOT_REQUIRES(books.mutex);

CACHALOT_END
