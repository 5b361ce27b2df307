// DeviceAllocator is one device's allocator: the wiring of its parts.
//
//   fast        serves malloc and free, and owns the heap's state, on which all parts work
//   supply      serves a request that no free block serves, by the growth of its pool
//   the rest    serves the program's other calls; each part takes the lock itself
//
// allocator/README.md has the picture, base/locks.h the rules of locks.
#pragma once

#include <memory>
#include <vector>

#include "api/fast_path.h"
#include "api/inspection.h"
#include "cachalot/options.h"
#include "growth/cache_level.h"
#include "growth/checkpoints.h"
#include "growth/evictable_pools.h"
#include "growth/page_driver.h"
#include "growth/page_growth.h"
#include "growth/segment_growth.h"
#include "growth/sharing.h"
#include "growth/sleeping_pools.h"
#include "growth/supply.h"
#include "heap/cache_bridge.h"
#include "heap/limits.h"
#include "heap/pending_frees.h"
#include "heap/private_pools.h"
#include "heap/stream_clocks.h"
#include "heap/uncached.h"

CACHALOT_BEGIN

// Growths has the growth strategies of one device's allocator: the usual one, which the option `heap` selects, and that of
// plain memory and of pools with a segment provider.
class Growths {
 public:
  // Uses segments, with a message on stderr, if the device lacks what the option needs.
  Growths(HeapState& state, const PageGrowth::Parts& parts, const Options& options);
  Growths(const Growths&) = delete;
  Growths& operator=(const Growths&) = delete;

  Growth& usual() const { return *usual_; }
  Growth& plain() const { return *segments_; }
  GrowthOfPools of_pools() const { return {usual_, pages_ != nullptr, segments_.get()}; }
  // Returns null unless the default pools use pages.
  PageGrowth* pages() const { return pages_.get(); }
  // Returns the kind of memory of the default pools.
  HeapKind kind() const { return kind_; }
  std::vector<const Growth*> all() const;
  void give_back_everything() noexcept;

 private:
  const HeapKind kind_;
  std::unique_ptr<SegmentGrowth> segments_;
  std::unique_ptr<SegmentGrowth> other_segments_;  // AsyncGrowth, ManagedGrowth, or null
  std::unique_ptr<PageGrowth> pages_;
  Growth* usual_;
};

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
  // Calls the callback of the soft limit, if the calling thread has crossed it outside of an allocation. Takes the lock
  // itself.
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
  EvictablePools evictable{state, pools, sleeping, level, pressure};
  Sharing sharing{state, handles, recovery, growths.usual()};
  Checkpoints checkpoints{state, pools, frees, caches};
  Inspection inspection;
};

CACHALOT_END
