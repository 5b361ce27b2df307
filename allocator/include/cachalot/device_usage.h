/// @file
/// The memory of one device by pools, at one moment.
#pragma once

#include "cachalot/require_cpp17.h"

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "cachalot/pool_id.h"
#include "cachalot/stats.h"

CACHALOT_BEGIN_API

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

/// A DeviceUsage has the statistics of one device and the memory of its pools, all of one moment.
struct DeviceUsage {
  DeviceStats stats;                    ///< PyTorch's statistics
  std::int64_t num_oom_rejections = 0;  ///< as in AddedStats
  /// The default pool first, then each private pool in the order of its id.
  std::vector<PoolUsage> pools;
};

CACHALOT_END_API
