// What a replay found, as text for people and as JSON for programs.
#pragma once

#include <string>
#include <vector>

#include "tools/replay.h"

namespace cachalot::tools {

// `with_min_device`: the smallest device was looked for (ReplayOptions::find_min_device) and is part of the report.

// A block of lines, one figure each.
std::string to_text(const ReplayResult& result, bool with_min_device);

// One line a trace under a heading.
std::string summary_table(const std::vector<ReplayResult>& results, bool with_min_device);

// A JSON object on one line, without the newline.
std::string to_json(const ReplayResult& result, bool with_min_device);

}  // namespace cachalot::tools
