// The holders of a program's GPU memory, from a snapshot: as text for people and as JSON for programs.
#pragma once

#include <cstddef>
#include <string>

#include "tools/base/text_layout.h"
#include "tools/history/history.h"

namespace cachalot::tools {

// For each device: reserved, allocated, requested and free bytes, fragmentation (stats.h has the formulas), the same for
// each pool and stream, and the `top` sites with most live memory. Pinned host memory is left out.
std::string to_text(const History& history, std::size_t top, const Style& style = {});

// Returns the report as a JSON object on one line, without the newline.
std::string to_json(const History& history, std::size_t top);

}  // namespace cachalot::tools
