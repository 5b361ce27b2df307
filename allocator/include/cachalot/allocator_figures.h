/// @file
/// Statistics and snapshots of an allocator.
#pragma once

#include "cachalot/require_cpp17.h"

#include <cstddef>
#include <string>

#include "cachalot/allocator_group.h"
#include "cachalot/device_usage.h"
#include "cachalot/pool_id.h"
#include "cachalot/snapshot.h"
#include "cachalot/stats.h"

CACHALOT_BEGIN_API

/// AllocatorFigures are the statistics and snapshots of a CachingAllocator, and the checks of its
/// tables.
///
/// All figures are in bytes and exact at every moment. With thread_cache the peaks may be off, by
/// at most 2 MiB for each of several threads that allocated concurrently.
class AllocatorFigures : private AllocatorGroup {
 public:
  /// Returns the bytes of allocated blocks; requests are rounded up to blocks.
  std::size_t memory_allocated(int device = 0) const;
  /// Returns the bytes held from the device.
  std::size_t memory_reserved(int device = 0) const;
  /// Returns the largest memory_allocated since the start or reset_peak_stats.
  std::size_t max_memory_allocated(int device = 0) const;
  /// Returns the largest memory_reserved since the start or reset_peak_stats.
  std::size_t max_memory_reserved(int device = 0) const;
  /// Returns PyTorch's statistics.
  DeviceStats memory_stats(int device = 0) const;
  /// Returns the statistics that PyTorch has since 2.12 and 2.13. reset_peak_stats and
  /// reset_accumulated_stats reset them, too.
  AddedStats added_stats(int device = 0) const;
  /// Returns how well memory is used now.
  Fragmentation fragmentation(int device = 0) const;
  /// Returns the statistics and the memory of each pool at one moment. It takes a microsecond and
  /// some nanoseconds for each free block, under the lock of the device.
  DeviceUsage device_usage(int device = 0) const;
  /// Returns all segments and blocks of one private pool, or with the default id of everything. The
  /// traces of the history come with it if `include_traces`.
  Snapshot snapshot(PoolId pool = {}, bool include_traces = true);
  /// Starts every peak again from the current value.
  void reset_peak_stats(int device = kAllDevices);
  /// Starts every sum (Stat::allocated, Stat::freed and the num_ counts) again from 0.
  void reset_accumulated_stats(int device = kAllDevices);
  /// Returns the size of the largest free block in any pool; if `starting_from_free_memory`, at
  /// least the device's free memory (PyTorch's cacheInfo).
  std::size_t largest_available(int device = 0, bool starting_from_free_memory = true);

  /// Walks all tables. Returns "" or the first broken invariant. For tests: it is slow.
  std::string validate() const;
  /// Returns the host bytes of the allocator's own tables.
  std::size_t metadata_bytes() const;

 protected:
  /// Makes the group for the allocator with this state.
  explicit AllocatorFigures(AllocatorState& state) : AllocatorGroup(state) {}
  ~AllocatorFigures() = default;
};

CACHALOT_END_API
