// Supply serves a request that no free block of its arena serves: it asks the program to free memory, then the growth
// of the pool, and reports an out-of-memory error if neither helps.
#pragma once

#include <string>

#include "growth/growth.h"
#include "heap/cache_bridge.h"
#include "heap/limits.h"
#include "heap/memory_pressure.h"
#include "heap/private_pools.h"

CACHALOT_BEGIN

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
