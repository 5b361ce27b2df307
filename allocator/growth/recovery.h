// Recovery is what every growth strategy may do for a request before it fails: the steps; the order is the strategy's own.
#pragma once

#include "growth/growth.h"
#include "heap/cache_bridge.h"
#include "heap/heap_state.h"
#include "heap/pending_frees.h"
#include "heap/private_pools.h"
#include "heap/stream_registry.h"

namespace cachalot {

class Recovery {
 public:
  Recovery(HeapState& state, PrivatePools& pools, PendingFrees& frees, StreamRegistry& streams)
      : state_(state), pools_(pools), frees_(frees), streams_(streams) {}
  Recovery(const Recovery&) = delete;
  Recovery& operator=(const Recovery&) = delete;

  // A free block of pools that offered theirs (use_on_oom), as a last resort; never for the request of another private pool.
  Block* borrow(Request request, const Held& held) CACHALOT_HELD;
  // Waits until the blocks that wait for other streams are free. False: none was waiting.
  bool synchronize_frees(Growing& growing) CACHALOT_GROWING { return frees_.synchronize(nullptr, growing); }
  void release_default_pools(Growing& growing) CACHALOT_GROWING;
  // Gives back what pools without users hold; all of them for the default id. A pool left without memory is no more, but a tag
  // stays asleep until it is woken. Nothing during a capture, which a cudaFree or a wait would spoil.
  void release_unused_pools(PoolId id, Growing& growing) CACHALOT_GROWING;
  // All of these steps, for what is no request: whatever others hold without need goes back to the device.
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

}  // namespace cachalot
