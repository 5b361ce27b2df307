// Statistics of one device's memory: PyTorch's nine arrays and scalars under PyTorch's names, and what it lacks,
// figures of fragmentation. Plain values; copy them freely.
// Source of names and meanings: torch.cuda.memory_stats of PyTorch 2.11.
#pragma once

#include "cachalot/require_cpp17.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

namespace cachalot {

struct Stat {
  std::int64_t current = 0;
  std::int64_t peak = 0;       // largest current since the start or reset_peak_stats
  std::int64_t allocated = 0;  // sum of increases since the start or reset_accumulated_stats
  std::int64_t freed = 0;      // sum of decreases, likewise

  friend constexpr bool operator==(const Stat& a, const Stat& b) {
    return a.current == b.current && a.peak == b.peak && a.allocated == b.allocated && a.freed == b.freed;
  }
  friend constexpr bool operator!=(const Stat& a, const Stat& b) { return !(a == b); }
};

struct StatArray {
  Stat all, small_pool, large_pool;

  friend constexpr bool operator==(const StatArray& a, const StatArray& b) {
    return a.all == b.all && a.small_pool == b.small_pool && a.large_pool == b.large_pool;
  }
  friend constexpr bool operator!=(const StatArray& a, const StatArray& b) { return !(a == b); }
};

struct DeviceStats {
  StatArray allocation;            // count: +1 allocate, -1 deallocate
  StatArray segment;               // count of segments held from the device
  StatArray active;                // count: +1 allocate, -1 when the block is free for reuse (after its events)
  StatArray inactive_split;        // count of free blocks that are part of a split segment
  StatArray allocated_bytes;       // bytes of the blocks counted in allocation
  StatArray reserved_bytes;        // bytes held from the device
  StatArray active_bytes;          // bytes of the blocks counted in active
  StatArray inactive_split_bytes;  // bytes of the blocks counted in inactive_split
  StatArray requested_bytes;       // bytes asked for, of the blocks counted in active

  Stat oversize_allocations;  // blocks of max_split_size or more
  Stat oversize_segments;     // segments of max_split_size or more

  std::int64_t num_alloc_retries = 0;  // requests to the device after the cache was given back
  std::int64_t num_ooms = 0;
  std::int64_t num_sync_all_streams = 0;  // times every pending event was waited for
  std::int64_t num_device_alloc = 0;
  std::int64_t num_device_free = 0;
  std::int64_t max_split_size = -1;  // bytes, as when the allocator was made (PyTorch's own rule); -1: unlimited
};
bool operator==(const DeviceStats& a, const DeviceStats& b);
inline bool operator!=(const DeviceStats& a, const DeviceStats& b) { return !(a == b); }

// How well memory is used, now. Every ratio is computed from the byte counts beside it.
struct Fragmentation {
  std::size_t requested_bytes = 0;     // asked for by live allocations (those waiting for other streams included)
  std::size_t allocated_bytes = 0;     // of the blocks that serve them
  std::size_t reserved_bytes = 0;      // held from the device
  std::size_t free_bytes = 0;          // cached: in free blocks
  std::size_t largest_free_bytes = 0;  // of the largest free block
  std::size_t free_blocks = 0;
  std::size_t peak_requested_bytes = 0;
  std::size_t peak_reserved_bytes = 0;

  double internal = 0;        // 1 - requested/allocated; 0 when nothing is allocated
  double external = 0;        // 1 - largest_free/free; 0 when nothing is cached
  double reserved_ratio = 0;  // reserved/allocated; 0 when nothing is allocated
  double peak_ratio = 0;      // peak reserved/peak requested; 0 when nothing was requested

  // Free blocks by size: entry i counts blocks of [512 << i, 1024 << i) bytes; the last entry has no upper end.
  static constexpr std::size_t kHistogramEntries = 32;
  std::array<std::uint64_t, kHistogramEntries> free_block_histogram{};
};

// A JSON object with torch.cuda.memory_stats' flat keys ("allocated_bytes.all.current", …, "num_ooms") and numbers.
std::string to_json(const DeviceStats& stats);
std::string to_json(const Fragmentation& fragmentation);

}  // namespace cachalot
