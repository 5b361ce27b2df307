// The report of `cachalot explain` on a device, as a part of a report tree.
#pragma once

#include <cstddef>

#include "tools/analysis/explanation.h"
#include "tools/base/report_tree.h"

namespace cachalot::tools {

// Returns the explanation: the moment and its cause, live memory, cached memory, and the remedies. `top` is the most rows of
// each table.
Section report_of(const Explanation& explanation, std::size_t top);

}  // namespace cachalot::tools
