// The moment of a history that a user names.
#pragma once

#include <span>
#include <string>

#include "tools/analysis/peak.h"

namespace cachalot::tools {

// Returns the moment "peak" (of requested bytes), "reserved" (the peak of reserved bytes), "oom" (the last failed allocation),
// "end", or after so many events: "1200". Throws InvalidArgument for another one, and where memory never ran out.
Peak asked_peak(const std::string& path, const DeviceHistory& device, std::span<const Allocation> allocations,
                const std::string& at);

}  // namespace cachalot::tools
