/// @file
/// The statistics of one device's memory, the memory of its pools, its limits, and snapshots.
///
/// Names and meanings are those of torch.cuda.memory_stats (PyTorch 2.11). Fragmentation adds the
/// figures that PyTorch does not have. All types are plain values.
#pragma once

#include "cachalot/require_cpp17.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "cachalot/device.h"
#include "cachalot/events.h"
#include "cachalot/options.h"

CACHALOT_BEGIN_API

/// A Stat is one figure that rises and falls.
struct Stat {
  std::int64_t current = 0;    ///< the figure now
  std::int64_t peak = 0;       ///< the largest `current` since the start or reset_peak_stats
  std::int64_t allocated = 0;  ///< sum of increases since the start or reset_accumulated_stats
  std::int64_t freed = 0;      ///< sum of decreases since the start or reset_accumulated_stats

  /// Compares all members.
  friend constexpr bool operator==(const Stat& a, const Stat& b) {
    return a.current == b.current && a.peak == b.peak && a.allocated == b.allocated &&
           a.freed == b.freed;
  }
  /// Returns !(a == b).
  friend constexpr bool operator!=(const Stat& a, const Stat& b) { return !(a == b); }
};

/// A StatArray is one Stat for each size class and for all memory.
struct StatArray {
  Stat all;         ///< small and large blocks
  Stat small_pool;  ///< blocks of up to 1 MiB
  Stat large_pool;  ///< blocks above 1 MiB

  /// Compares all members.
  friend constexpr bool operator==(const StatArray& a, const StatArray& b) {
    return a.all == b.all && a.small_pool == b.small_pool && a.large_pool == b.large_pool;
  }
  /// Returns !(a == b).
  friend constexpr bool operator!=(const StatArray& a, const StatArray& b) { return !(a == b); }
};

/// DeviceStats are PyTorch's statistics of one device. Counts are numbers of blocks or segments.
struct DeviceStats {
  StatArray allocation;            ///< count of allocated blocks: +1 by allocate, -1 by deallocate
  StatArray segment;               ///< count of segments held from the device
  StatArray active;                ///< count of blocks that are allocated or wait for other streams
  StatArray inactive_split;        ///< count of free blocks that are part of a split segment
  StatArray allocated_bytes;       ///< bytes of the blocks that `allocation` counts
  StatArray reserved_bytes;        ///< bytes held from the device
  StatArray active_bytes;          ///< bytes of the blocks that `active` counts
  StatArray inactive_split_bytes;  ///< bytes of the blocks that `inactive_split` counts
  StatArray requested_bytes;       ///< bytes asked for, of the blocks that `active` counts

  Stat oversize_allocations;  ///< blocks of at least max_split_size
  Stat oversize_segments;     ///< segments of at least max_split_size

  /// Times the device was asked again after the cache went back.
  std::int64_t num_alloc_retries = 0;
  std::int64_t num_ooms = 0;              ///< requests that failed for want of memory
  std::int64_t num_sync_all_streams = 0;  ///< times all pending events were waited for
  std::int64_t num_device_alloc = 0;      ///< calls that got memory from the device
  std::int64_t num_device_free = 0;       ///< calls that gave memory back to the device
  /// Bytes; the value when the allocator was made (PyTorch's rule); -1: unlimited.
  std::int64_t max_split_size = -1;
};
/// Compares all members.
bool operator==(const DeviceStats& a, const DeviceStats& b);
/// Returns !(a == b).
inline bool operator!=(const DeviceStats& a, const DeviceStats& b) { return !(a == b); }

/// AddedStats are the statistics of one device that PyTorch has since versions 2.12 and 2.13.
struct AddedStats {
  /// Requests that throw_on_cudamalloc_oom refused; num_ooms does not count them.
  std::int64_t num_oom_rejections = 0;
  /// Bytes held from the device for each private pool. A pool stays listed after its end.
  std::map<PoolId, StatArray> reserved_bytes_by_private_pools;
};

/// A Fragmentation says how well the memory of a device is used at one moment. Each ratio is
/// computed from the byte counts beside it.
struct Fragmentation {
  std::size_t requested_bytes = 0;  ///< asked for by blocks that are live or wait for other streams
  std::size_t allocated_bytes = 0;  ///< of those blocks
  std::size_t reserved_bytes = 0;   ///< held from the device
  std::size_t free_bytes = 0;       ///< cached, in free blocks
  std::size_t largest_free_bytes = 0;  ///< of the largest free block
  std::size_t free_blocks = 0;         ///< number of free blocks
  /// Largest requested_bytes since the start or reset_peak_stats.
  std::size_t peak_requested_bytes = 0;
  /// Largest reserved_bytes since the start or reset_peak_stats.
  std::size_t peak_reserved_bytes = 0;

  double internal = 0;        ///< 1 - requested/allocated; 0 if nothing is allocated
  double external = 0;        ///< 1 - largest_free/free; 0 if nothing is free
  double reserved_ratio = 0;  ///< reserved/allocated; 0 if nothing is allocated
  double peak_ratio = 0;      ///< peak reserved/peak requested; 0 if nothing was requested

  static constexpr std::size_t kHistogramEntries = 32;  ///< entries of free_block_histogram
  /// Counts free blocks by size: entry i counts blocks of [512 << i, 1024 << i) bytes; the last
  /// entry has no upper end.
  std::array<std::uint64_t, kHistogramEntries> free_block_histogram{};
};

/// Returns a JSON object with the flat keys of torch.cuda.memory_stats
/// ("allocated_bytes.all.current", ..., "num_ooms") and numbers.
std::string to_json(const DeviceStats& stats);
/// Returns a JSON object with the members' names as keys.
std::string to_json(const Fragmentation& fragmentation);

/// A PoolUsage describes the memory of one pool on one device. Sizes are in bytes.
struct PoolUsage {
  PoolId pool;                         ///< the pool; the default id for the default pool
  std::string tag;                     ///< the name of the tag whose pool this is, or ""
  bool is_asleep = false;              ///< true between release_physical and restore_physical
  std::size_t reserved_bytes = 0;      ///< held from the device
  std::size_t free_bytes = 0;          ///< of those, cached in free blocks; 0 while it is asleep
  std::size_t free_blocks = 0;         ///< number of free blocks; 0 while it is asleep
  std::size_t largest_free_bytes = 0;  ///< of the largest free block
  std::size_t asleep_bytes = 0;        ///< given back to the device until restore_physical

  /// Returns the bytes of reserved memory that is in no free block: that of live allocations, of
  /// blocks that wait for other streams, and of blocks that thread caches hold.
  std::size_t used_bytes() const {
    return reserved_bytes > free_bytes ? reserved_bytes - free_bytes : 0;
  }
};

/// LimitFigures are the limits of one device and what counts against them, at one moment.
struct LimitFigures {
  int device = 0;                          ///< index of the device
  std::optional<std::size_t> limit_bytes;  ///< the lowest limit of held bytes; empty without one
  /// The text of that limit's setting: `limit:20GiB` (the option), `set_limit("20GiB")`,
  /// `per_process_memory_fraction:0.5` (the option) or `set_memory_fraction(0.5)`.
  std::string set_by;
  std::optional<std::size_t> soft_limit_bytes;  ///< the soft limit; empty without one
  std::size_t held_bytes = 0;                   ///< held from the device, in use or cached
  std::size_t reservation_bytes = 0;            ///< of reserve, what no stream has used yet
};

/// A DeviceUsage has the statistics of one device and the memory of its pools, all of one moment.
struct DeviceUsage {
  DeviceStats stats;                    ///< PyTorch's statistics
  std::int64_t num_oom_rejections = 0;  ///< as in AddedStats
  /// The default pool first, then each private pool in the order of its id.
  std::vector<PoolUsage> pools;
};

/// A BlockSnapshot describes one block of a segment.
/// Names and states are those of torch.cuda.memory_snapshot (PyTorch 2.11).
struct BlockSnapshot {
  /// The state of a block.
  enum class State : std::uint8_t {
    active_allocated,     ///< allocated
    active_pending_free,  ///< freed; other streams may still use it
    inactive,             ///< free
  };
  Address address = 0;   ///< where the block begins
  std::size_t size = 0;  ///< bytes of the block
  /// Bytes that were asked for; of an inactive block, in its last use.
  std::size_t requested_size = 0;
  State state = State::inactive;  ///< allocated, waiting or free
  Context context;                ///< where it was allocated, if recorded
};

/// A SegmentSnapshot describes one segment and its blocks.
/// Invariant: `blocks` tile the segment.
struct SegmentSnapshot {
  int device = 0;                  ///< index of the device
  Address address = 0;             ///< where the segment begins
  std::size_t total_size = 0;      ///< bytes of the segment
  std::size_t allocated_size = 0;  ///< bytes in allocated blocks
  /// Bytes in blocks that are allocated or wait for other streams.
  std::size_t active_size = 0;
  std::size_t requested_size = 0;  ///< bytes asked for by active blocks
  std::size_t asleep_size = 0;     ///< bytes without memory until restore_physical; not reserved
  Stream stream = nullptr;         ///< stream that its memory is for
  PoolKind segment_type = PoolKind::small;  ///< size class of its blocks
  PoolId segment_pool_id;                   ///< the pool that it belongs to
  bool is_expandable = false;               ///< true over heap:pages
  /// The number of the segment on its device, from 1 on in the order in which they came; 0 if it is
  /// expandable.
  std::uint64_t number = 0;
  Context context;                    ///< where its first allocation was, if recorded
  std::vector<BlockSnapshot> blocks;  ///< in address order
};

/// A Snapshot describes all memory that an allocator holds at one moment. A plain value.
struct Snapshot {
  std::vector<SegmentSnapshot> segments;           ///< of all devices; of each in address order
  std::vector<std::vector<Change>> device_traces;  ///< a trace for each device, oldest entry first
  Options options;                                 ///< the allocator's options
};

/// Returns a JSON object with the keys of torch.cuda.memory._snapshot, which PyTorch's memory
/// viewer opens: segments, device_traces, allocator_settings, external_annotations. Contexts are
/// opaque, so that "frames" are empty. Segments that are asleep also have the key asleep_size.
std::string to_json(const Snapshot& snapshot);

CACHALOT_END_API
