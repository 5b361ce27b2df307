/// @file
/// How long the system takes to pin host memory.
#pragma once

#include "cachalot/require_cpp17.h"

#include <array>
#include <cstddef>
#include <cstdint>

CACHALOT_BEGIN_API

/// CallTimes say how often a call was made and how long it took, in microseconds.
struct CallTimes {
  std::int64_t count = 0;     ///< calls since the start or reset_accumulated_stats
  std::int64_t total_us = 0;  ///< their sum since the start or reset_accumulated_stats
  std::int64_t min_us = 0;    ///< the shortest since the start or reset_peak_stats; 0: none yet
  std::int64_t max_us = 0;    ///< the longest since the start or reset_peak_stats
};

/// PinTimes are the times of a PinnedHostAllocator's calls to the system.
struct PinTimes {
  CallTimes pin;    ///< calls that got pinned memory (cuMemHostAlloc)
  CallTimes unpin;  ///< calls that gave it back (cuMemFreeHost)

  static constexpr std::size_t kSizes = 64;  ///< entries of pins_by_size
  /// Counts calls that got pinned memory, by size: entry i counts those of more than 2^(i-1) and at
  /// most 2^i bytes, since the start or reset_accumulated_stats.
  std::array<std::int64_t, kSizes> pins_by_size{};
};

CACHALOT_END_API
