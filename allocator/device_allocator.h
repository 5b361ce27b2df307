// DeviceAllocator is one device's allocator: the wiring of its parts.
//
//   fast        serves malloc and free, and owns the heap's state, on which all parts work
//   supply      serves a request that no free block serves, by the growth of its pool
//   the rest    serves what the program asks beside memory; each part locks by itself
//
// allocator/README.md has the picture, base/locks.h the rules of locks.
#pragma once

#include <memory>

#include "cachalot/options.h"
#include "device/sharing.h"
#include "fast_path.h"
#include "growth/cache_level.h"
#include "growth/checkpoints.h"
#include "growth/growths.h"
#include "growth/recovery.h"
#include "growth/sharing.h"
#include "growth/sleeping_pools.h"
#include "growth/supply.h"
#include "heap/cache_bridge.h"
#include "heap/limits.h"
#include "heap/memory_pressure.h"
#include "heap/pending_frees.h"
#include "heap/private_pools.h"
#include "heap/saved_memory.h"
#include "heap/stream_clocks.h"
#include "heap/stream_registry.h"
#include "heap/uncached.h"
#include "inspection/inspection.h"

CACHALOT_BEGIN

class DeviceAllocator {
 public:
  DeviceAllocator(std::shared_ptr<Device> device, PageMap& page_map, const Options& options);
  // Returns everything to the device, live allocations included.
  ~DeviceAllocator();

  // Contracts are those of CachingAllocator's methods of the same names.
  void apply(const Options& options);
  void set_memory_fraction(double fraction, Limits::Setter setter = Limits::Setter::call);
  void set_limit(const MemoryLimit& limit, Limits::Setter setter = Limits::Setter::call);
  double memory_fraction() const;
  // Calls the callback of the soft limit, if the calling thread has crossed it beside an allocation. Locks by itself.
  void tell_if_crossed();

  FastPath fast;
  HeapState& state = fast.state;

  MemoryPressure pressure{state};
  Limits limits{state};
  StreamClocks clocks{state};
  PrivatePools pools{state};
  CacheBridge caches{state};
  PendingFrees frees{state};
  StreamRegistry streams{state, pools, clocks, frees, caches};
  Uncached uncached{state, pressure};
  Supply supply{state, pools, caches, pressure, limits};
  SharedHandles handles;
  SavedMemory saved{state};
  Recovery recovery{state, pools, frees, streams};
  Growths growths;

  SlowPath slow{pools, streams, frees, caches, supply, uncached, limits};
  CacheLevel level{state, frees, caches, limits, recovery, growths.usual()};
  SleepingPools sleeping;
  Sharing sharing{state, handles, recovery, growths.usual()};
  Checkpoints checkpoints{state, pools, frees, caches};
  Inspection inspection;
};

CACHALOT_END
