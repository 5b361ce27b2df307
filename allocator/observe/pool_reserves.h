// What each private pool holds from the device, as a statistic. A pool stays listed after its end, as PyTorch lists it.
// Not thread-safe.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>

#include "cachalot/pool_id.h"
#include "cachalot/stats.h"

CACHALOT_BEGIN

class PoolReserves {
 public:
  using Figures = std::map<PoolId, StatArray>;

  // The default pool's bytes are ignored.
  void came(PoolId pool, PoolKind kind, std::int64_t bytes) {
    for_both(pool, kind, [&](Stat& stat) {
      stat.current += bytes;
      stat.allocated += bytes;
      stat.peak = std::max(stat.peak, stat.current);
    });
  }
  void went(PoolId pool, PoolKind kind, std::int64_t bytes) {
    for_both(pool, kind, [&](Stat& stat) {
      stat.current -= bytes;
      stat.freed += bytes;
    });
  }
  const Figures& figures() const { return figures_; }
  void reset_peak() {
    for_all([](Stat& stat) { stat.peak = stat.current; });
  }
  void reset_accumulated() {
    for_all([](Stat& stat) { stat.allocated = stat.freed = 0; });
  }

 private:
  template <typename Change>
  void for_both(PoolId pool, PoolKind kind, Change change) {
    if (pool.is_default()) return;
    StatArray& stats = figures_[pool];
    change(stats.all);
    change(kind == PoolKind::small ? stats.small_pool : stats.large_pool);
  }
  template <typename Change>
  void for_all(Change change) {
    for (auto& [pool, stats] : figures_) {
      for (Stat* stat : {&stats.all, &stats.small_pool, &stats.large_pool}) change(*stat);
    }
  }

  Figures figures_;
};

CACHALOT_END
