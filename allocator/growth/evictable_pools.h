// EvictablePools make tags give way when other memory runs short: their pools are put to sleep, the least important first, and
// wake when they are ensured.
//
// A hold keeps a pool from giving way. An eviction waits for the device, so that work which was queued under a hold is done when
// the memory goes, and it takes only pools without holds, under the lock in which it marks them asleep.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

#include "base/function_ref.h"
#include "base/host_memory.h"
#include "cachalot/private_pool.h"
#include "growth/cache_level.h"
#include "growth/sleeping_pools.h"
#include "heap/limits.h"
#include "heap/private_pools.h"

CACHALOT_BEGIN

class EvictablePools {
 public:
  EvictablePools(HeapState& state, PrivatePools& pools, SleepingPools& sleeping, CacheLevel& level,
                 MemoryPressure& pressure)
      : state_(state), pools_(pools), sleeping_(sleeping), level_(level), pressure_(pressure) {}
  EvictablePools(const EvictablePools&) = delete;
  EvictablePools& operator=(const EvictablePools&) = delete;

  // These take the lock themselves. Contracts are those of CachingAllocator's methods; the pool is the tag's.
  void make_evictable(PoolId id, std::string_view tag, const EvictOptions& options);
  void make_resident(PoolId id);
  // Sets whether the next ensure finds lost content: not after the program has restored the pool, and again after an ensure that
  // failed on another device.
  void set_lost_content(PoolId id, bool is_lost);
  // Holds the pool before it wakes. `wake` wakes it, and is called if it is asleep. Calls must follow each other: content comes back once.
  bool ensure(PoolId id, FunctionRef<void()> wake);
  void let_go(PoolId id);
  std::size_t give_way(std::size_t bytes);

  // Makes one pool give way, as MemoryPressure::Evictor says. Takes the lock itself.
  std::size_t evict_one(const PrivatePool* but, int priority);

 private:
  PrivatePool* least_important(const PrivatePool* but, int priority, const Set<PoolId>& unable,
                               const Held& held) const CACHALOT_HELD;
  bool hold(PoolId id);
  bool refill(PoolId id);

  HeapState& state_;
  PrivatePools& pools_;
  SleepingPools& sleeping_;
  CacheLevel& level_;
  MemoryPressure& pressure_;
  std::uint64_t ensures_ CACHALOT_GUARDED_BY(device_lock) = 0;
};

CACHALOT_END
