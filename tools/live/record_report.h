// The summary of a record as text for people and as JSON for programs.
#pragma once

#include <cstddef>
#include <string>

#include "tools/live/record_summary.h"
#include "tools/style.h"

namespace cachalot::tools::live {

// Returns lines: of each device of each process the peaks, what ran out, what grows, fragmentation and pools. `top` is the most
// devices, and the most pools of each.
std::string to_text(const RecordSummary& summary, std::size_t top, const Style& style);

// Returns one JSON object on one line, without the newline; docs/tools/json.md has its keys.
std::string to_json(const std::string& file, const RecordHeader& header, const RecordSummary& summary);

}  // namespace cachalot::tools::live
