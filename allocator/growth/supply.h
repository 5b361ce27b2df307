// Supply serves a request that no free block of its arena serves: it asks the program to free memory, then the growth
// of the pool, and reports an out-of-memory error if neither helps.
#pragma once

#include <algorithm>
#include <cstddef>
#include <string>

#include "growth/growth.h"
#include "heap/cache_bridge.h"
#include "heap/heap_state.h"
#include "heap/limits.h"
#include "heap/pending_frees.h"
#include "heap/private_pools.h"
#include "heap/stream_clocks.h"

CACHALOT_BEGIN

// Recovery has the steps that a growth strategy may take for a request before it fails. The order is the strategy's
// own.
class Recovery {
 public:
  Recovery(HeapState& state, PrivatePools& pools, PendingFrees& frees, StreamRegistry& streams)
      : state_(state), pools_(pools), frees_(frees), streams_(streams) {}
  Recovery(const Recovery&) = delete;
  Recovery& operator=(const Recovery&) = delete;

  // Returns a free block of a pool that offered its own (use_on_oom), or null; always null for a request of a private
  // pool.
  Block* borrow(Request request, const Held& held) CACHALOT_HELD;
  // Waits until the blocks that wait for other streams are free. Returns false if none was waiting.
  bool synchronize_frees(Growing& growing) CACHALOT_GROWING { return frees_.synchronize(nullptr, growing); }
  // Waits for one event of a block of the request's owner that waits for other streams: the first to complete. Returns false if no
  // such block was waiting.
  bool synchronize_next_free(Request request, Growing& growing) CACHALOT_GROWING {
    return frees_.synchronize_next(request.pool().owner(), growing);
  }
  void release_default_pools(Growing& growing, Reservation reservation = Reservation::goes) CACHALOT_GROWING;
  // Gives back idle pages of the default pools as far as `bytes` more of plain memory beside them, for `growth`, would raise the
  // peak of held memory.
  void make_room_for_plain(const Growth& growth, std::size_t bytes, Growing& growing) CACHALOT_GROWING;
  // Returns the memory of the pool `id`, or of all pools (the default id), to the device, as far as they have no users,
  // and erases those left without memory; the pool of a sleeping tag stays. Does nothing during a capture, which a
  // cudaFree or a wait would invalidate.
  void release_unused_pools(PoolId id, Growing& growing) CACHALOT_GROWING;
  // Takes all of these steps, for callers without a request: all free memory returns to the device.
  void recover(Growing& growing) CACHALOT_GROWING;
  // CachingAllocator::empty_cache; takes the lock itself. PyTorch empties the cache before each capture of a graph, for which a
  // reservation is to be there: it stays.
  void empty_cache(PoolId id, CacheBridge& caches);

 private:
  Block* borrow_from(BlockPool& pool, Request request, const Held& held) CACHALOT_HELD;
  bool may_erase(const PrivatePool& pool, const Held& held) const CACHALOT_HELD;

  HeapState& state_;
  PrivatePools& pools_;
  PendingFrees& frees_;
  StreamRegistry& streams_;
};

// Returns how much memory garbage collection would return now: it keeps held memory under a part of the limit, but not
// under what a reservation keeps.
CACHALOT_REQUIRES(device_lock)
inline std::size_t garbage_bytes(const HeapState& state, const Held& held) {
  const double part = state.options.garbage_collection_threshold;
  const auto most = static_cast<std::size_t>(part * static_cast<double>(state.ledger.limit(held)));
  const std::size_t floor = std::max(most, state.ledger.kept_bytes(held));
  const std::size_t held_bytes = state.ledger.held_bytes(held);
  return held_bytes > floor ? held_bytes - floor : 0;
}

class Supply {
 public:
  Supply(HeapState& state, PrivatePools& pools, CacheBridge& caches, MemoryPressure& pressure, Limits& limits)
      : state_(state), pools_(pools), caches_(caches), pressure_(pressure), limits_(limits) {}
  Supply(const Supply&) = delete;
  Supply& operator=(const Supply&) = delete;

  // Returns a free block that serves the request. Throws OutOfMemory, CudaError, and InvalidArgument if the pool is
  // asleep.
  Block& obtain(Request request, const Context& context, Held& held) CACHALOT_HELD;
  // Tells the observers, then throws.
  [[noreturn]] void throw_out_of_memory(Request request, const Context& context, Held& held) CACHALOT_HELD;

 private:
  Block* obtain_or_refuse(Request request, const Context& context, Held& held) CACHALOT_HELD;
  [[noreturn]] void refuse(Request request, Held& held) CACHALOT_HELD;
  Block* obtain_once(Request request, const Context& context, Held& held) CACHALOT_HELD;
  void update_sums(const Held& held) CACHALOT_HELD;

  HeapState& state_;
  PrivatePools& pools_;
  CacheBridge& caches_;
  MemoryPressure& pressure_;
  Limits& limits_;
};

CACHALOT_END
