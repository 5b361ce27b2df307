// Memory that grows with the steps of a program: perhaps a leak.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "tools/analysis/categories.h"
#include "tools/analysis/sites.h"
#include "tools/analysis/timeline.h"

namespace cachalot::tools {

// A line of the program whose memory grows.
struct Growth {
  FrameId place = 0;
  std::uint64_t bytes = 0;                 // that it holds at the moment
  std::vector<std::uint32_t> allocations;  // the live ones, the oldest first
};

// Returns the lines whose live memory was allocated throughout the history, those with most bytes first. Of a training these
// are lines with memory that outlived two backward passes; of other programs those with memory of several steps, where a step is
// an allocation outside of modules that is freed and made again, or whose own equal allocations are nearly all that lives.
std::vector<Growth> growth_until(const DeviceHistory& device, std::span<const Allocation> allocations,
                                 std::span<const Category> categories, const Peak& peak, Sites& sites);

}  // namespace cachalot::tools
