// The CacheLevel changes on request how much memory of the default pools is cached: trim and limits lower it without a
// wait for the device, reservations raise it. Private pools keep theirs.
#pragma once

#include <cstddef>

#include "growth/growth.h"
#include "growth/supply.h"
#include "heap/cache_bridge.h"
#include "heap/limits.h"
#include "heap/pending_frees.h"

CACHALOT_BEGIN

class CacheLevel {
 public:
  CacheLevel(HeapState& state, PendingFrees& frees, CacheBridge& caches, Limits& limits, Recovery& recovery,
             Growth& growth)
      : state_(state), frees_(frees), caches_(caches), limits_(limits), recovery_(recovery), growth_(growth) {}
  CacheLevel(const CacheLevel&) = delete;
  CacheLevel& operator=(const CacheLevel&) = delete;

  // These take the lock themselves. Contracts of the first and of reserve are those of CachingAllocator's methods.
  std::size_t trim(std::size_t keep_bytes);
  // Gives back cached memory beyond the limit, as far as trim can.
  void come_under_limit();
  // Gives back at least `bytes` of cached memory, as far as trim can. Returns the bytes.
  std::size_t give_back(std::size_t bytes);
  void reserve(std::size_t bytes);
  // Returns the bytes of the reservation that no stream has taken yet.
  std::size_t reserved_unused() const;

 private:
  std::size_t lower(std::size_t most_held, bool may_exceed, Growing& growing) CACHALOT_GROWING;
  bool add_unused(std::size_t bytes, Growing& growing) CACHALOT_GROWING;
  std::size_t unused_bytes(const Held& held) const CACHALOT_HELD;
  [[noreturn]] void throw_out_of_memory(std::size_t bytes, Held& held) CACHALOT_HELD;

  HeapState& state_;
  PendingFrees& frees_;
  CacheBridge& caches_;
  Limits& limits_;
  Recovery& recovery_;
  Growth& growth_;
};

CACHALOT_END
