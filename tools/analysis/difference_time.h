// Two runs side by side in time.
#pragma once

#include <span>

#include "tools/analysis/difference.h"
#include "tools/history/allocations.h"

namespace cachalot::tools {

// A device of one run. `device` is nullptr where the run lacks it.
struct ComparedRun {
  const History* history = nullptr;
  const DeviceHistory* device = nullptr;
  std::span<const Allocation> allocations;
};

// Returns the name with `*` in the place of each number: "step *" of "step 12".
std::string without_numbers(std::string_view name);

// Divides both runs by the begins of a stage that both have at least twice, the one that both have most often; without such
// by equal shares of the events. There are at most so many parts. Sets aligned_by and parts.
void compare_in_time(const ComparedRun& a, const ComparedRun& b, std::size_t parts, DeviceDifference& difference);

}  // namespace cachalot::tools
