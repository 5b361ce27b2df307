// Recovery has the steps that a growth strategy may take for a request before it fails. The order is the strategy's
// own.
#pragma once

#include "growth/growth.h"
#include "heap/cache_bridge.h"
#include "heap/heap_state.h"
#include "heap/pending_frees.h"
#include "heap/private_pools.h"
#include "heap/stream_registry.h"

CACHALOT_BEGIN

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
  void release_default_pools(Growing& growing) CACHALOT_GROWING;
  // Returns the memory of the pool `id`, or of all pools (the default id), to the device, as far as they have no users,
  // and erases those left without memory; the pool of a sleeping tag stays. Does nothing during a capture, which a
  // cudaFree or a wait would invalidate.
  void release_unused_pools(PoolId id, Growing& growing) CACHALOT_GROWING;
  // Takes all of these steps, for callers without a request: all free memory returns to the device.
  void recover(Growing& growing) CACHALOT_GROWING;
  // CachingAllocator::empty_cache; locks by itself.
  void empty_cache(PoolId id, CacheBridge& caches);

 private:
  bool may_erase(const PrivatePool& pool, const Held& held) const CACHALOT_HELD;

  HeapState& state_;
  PrivatePools& pools_;
  PendingFrees& frees_;
  StreamRegistry& streams_;
};

CACHALOT_END
