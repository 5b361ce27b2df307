// The holders of a program's GPU memory, from a snapshot.
#pragma once

#include <cstddef>

#include "tools/analysis/timeline.h"
#include "tools/base/report_tree.h"

namespace cachalot::tools {

// For each device: the peak of allocated bytes; and of the end reserved, allocated, requested and free bytes, fragmentation
// (stats.h has the formulas), the same for each pool and stream, and the `top` sites with most live memory. Pinned host memory
// is left out.
Section report_of(const Timelines& timelines, std::size_t top);

}  // namespace cachalot::tools
