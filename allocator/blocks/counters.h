// The statistics while they are kept: the few numbers from which DeviceStats is derived.
//
// A malloc and a free touch one kind's counters, in a cache line or two. Figures that follow from them are not kept:
// "all" is small plus large, "freed" is the added less the present, and "active" equals "allocation" except for the
// blocks that wait for other streams. Only peaks need words of their own, and those of "active" only move apart from
// those of "allocation" while something waits.
// Not thread-safe.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>

#include "base/check.h"
#include "base/thread_local_state.h"
#include "cachalot/device.h"
#include "cachalot/stats.h"

CACHALOT_BEGIN

// A Gauge is a figure that rises and falls, with its peak and the sum of its rises.
struct Gauge {
  std::int64_t current = 0;
  std::int64_t peak = 0;
  std::int64_t added = 0;     // since the start or reset_accumulated
  std::int64_t at_reset = 0;  // current then; so that the sum subtracted since is at_reset + added - current

  Stat stat() const { return {current, peak, added, at_reset + added - current}; }
  // Rises by `amount`, which is not negative.
  CACHALOT_FAST_PATH void add(std::int64_t amount) {
    current += amount;
    added += amount;
    if (current > peak) peak = current;
  }
  // Rises or falls, without a branch on the sign: in real programs it cannot be predicted.
  CACHALOT_FAST_PATH void change(std::int64_t amount) {
    current += amount;
    added += std::max<std::int64_t>(amount, 0);
    if (current > peak) peak = current;
  }
  // Forgets the sum of rises.
  void reset_accumulated() {
    added = 0;
    at_reset = current;
  }
};

// EventCounts are the numbers of events of a device since the start or reset_accumulated.
struct EventCounts {
  std::int64_t alloc_retries = 0;
  std::int64_t ooms = 0;
  std::int64_t oom_rejections = 0;  // in AddedStats
  std::int64_t sync_all_streams = 0;
  std::int64_t device_alloc = 0;
  std::int64_t device_free = 0;
};

class Counters {
 public:
  CACHALOT_FAST_PATH void allocated(PoolKind kind, std::int64_t block_bytes, std::int64_t requested_bytes) {
    Gauge* const gauges = kinds_[static_cast<std::size_t>(kind)].gauges;
    add(kAllocation, gauges, 1);
    add(kAllocatedBytes, gauges, block_bytes);
    add(kRequestedBytes, gauges, requested_bytes);
    if (waiting_blocks_ != 0) [[unlikely]]
      raise_active_peaks();
  }
  void free_requested(PoolKind kind, std::int64_t block_bytes) {
    subtract(kAllocation, kind, 1);
    subtract(kAllocatedBytes, kind, block_bytes);
  }
  void free_completed(PoolKind kind, std::int64_t requested_bytes) { subtract(kRequestedBytes, kind, requested_bytes); }
  // Between free_requested and free_completed, for a block that has to wait.
  void starts_waiting(PoolKind kind, std::int64_t block_bytes);
  void stops_waiting(PoolKind kind, std::int64_t block_bytes);

  CACHALOT_FAST_PATH void inactive_split(PoolKind kind, std::int64_t blocks, std::int64_t bytes) {
    Gauge* const gauges = kinds_[static_cast<std::size_t>(kind)].gauges;
    change(kInactiveSplit, gauges, blocks);
    change(kInactiveSplitBytes, gauges, bytes);
  }
  void segment_allocated(PoolKind kind, std::int64_t bytes) {
    add(kSegment, kind, 1);
    add(kReservedBytes, kind, bytes);
    ++events.device_alloc;
  }
  void segment_freed(PoolKind kind, std::int64_t bytes) {
    subtract(kSegment, kind, 1);
    subtract(kReservedBytes, kind, bytes);
  }
  // The device refused to take it: as if it had not been freed.
  void segment_kept(PoolKind kind, std::int64_t bytes) {
    subtract(kSegment, kind, -1);
    subtract(kReservedBytes, kind, -bytes);
  }
  // Memory of the page heap: PyTorch counts that of expandable segments so, and none of it as a segment.
  void pages_mapped(PoolKind kind, std::int64_t bytes) {
    add(kReservedBytes, kind, bytes);
    ++events.device_alloc;
  }
  void pages_unmapped(PoolKind kind, std::int64_t bytes) { subtract(kReservedBytes, kind, bytes); }
  void pages_moved(PoolKind from, PoolKind to, std::int64_t bytes) {
    if (from == to) return;
    subtract(kReservedBytes, from, bytes);
    add(kReservedBytes, to, bytes);
  }
  // The work of a thread through its cache since the last query.
  struct Gathered {
    using Figure = ThreadSum::Gathered;
    Figure blocks, bytes, requested;
  };
  void gathered(PoolKind kind, const Gathered& what);
  void oversize_allocation(std::int64_t count) { oversize_allocations_.change(count); }
  void oversize_segment(std::int64_t count) { oversize_segments_.change(count); }

  std::int64_t allocated_bytes() const { return current(kAllocatedBytes); }
  std::int64_t reserved_bytes() const { return current(kReservedBytes); }
  std::int64_t requested_bytes() const { return current(kRequestedBytes); }
  std::int64_t waiting_bytes() const { return current(kWaitingBytes); }
  std::int64_t max_allocated_bytes() const { return all_peak_[kAllocatedBytes]; }
  std::int64_t max_reserved_bytes() const { return all_peak_[kReservedBytes]; }

  DeviceStats stats() const;
  void reset_peak();
  void reset_accumulated();

  EventCounts events;
  std::int64_t max_split_size = -1;

 private:
  // The figures kept. Waiting ones are of blocks freed but not free yet.
  enum Figure {
    kAllocation,
    kAllocatedBytes,
    kRequestedBytes,
    kInactiveSplit,
    kInactiveSplitBytes,
    kSegment,
    kReservedBytes,
    kWaiting,
    kWaitingBytes,
    kFigures,
  };
  struct Kind {
    Gauge gauges[kFigures];
  };
  // Figures of active blocks that cannot be had from those of allocated and waiting ones.
  struct Active {
    std::int64_t peak[2] = {0, 0};  // while something waited
    std::int64_t all_peak = 0;
    std::int64_t at_reset[2] = {0, 0};
  };

  void add(Figure figure, PoolKind kind, std::int64_t amount) {
    add(figure, kinds_[static_cast<std::size_t>(kind)].gauges, amount);
  }
  CACHALOT_FAST_PATH void add(Figure figure, Gauge* gauges, std::int64_t amount) {
    gauges[figure].add(amount);
    if (const std::int64_t all = current(figure); all > all_peak_[figure]) all_peak_[figure] = all;
  }
  void subtract(Figure figure, PoolKind kind, std::int64_t amount) { gauge(figure, kind).current -= amount; }
  CACHALOT_FAST_PATH void change(Figure figure, Gauge* gauges, std::int64_t amount) {
    gauges[figure].change(amount);
    if (const std::int64_t all = current(figure); all > all_peak_[figure]) all_peak_[figure] = all;
  }
  Gauge& gauge(Figure figure, PoolKind kind) { return kinds_[static_cast<std::size_t>(kind)].gauges[figure]; }
  std::int64_t current(Figure figure) const {
    return kinds_[0].gauges[figure].current + kinds_[1].gauges[figure].current;
  }
  StatArray array(Figure figure) const;
  void raise_to_highest(Figure figure, PoolKind kind, const Gathered::Figure& what);
  void lower_to_current(Figure figure, PoolKind kind, const Gathered::Figure& what);

  void raise_active_peaks();
  void raise_active_peaks(Active& active, Figure allocated, Figure waiting);
  StatArray active_array(const Active& active, Figure allocated, Figure waiting) const;

  Kind kinds_[2];
  std::int64_t all_peak_[kFigures] = {};
  std::int64_t waiting_blocks_ = 0;
  Active active_, active_bytes_;
  Gauge oversize_allocations_, oversize_segments_;
};

// The memory that each private pool holds from the device, as a statistic. A pool stays listed after its end, as
// PyTorch lists it. Not thread-safe.
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
