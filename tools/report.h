// What a replay found, as text for people and as JSON for programs.
#pragma once

#include <string>
#include <vector>

#include "tools/replay.h"
#include "tools/text_layout.h"

namespace cachalot::tools {

struct ReplayReportContents {
  bool min_device = false;  // the smallest device was looked for (ReplayOptions::find_min_device)
  bool internals = false;   // device calls, retries and other counts of the allocator's own work
};

// Returns a block of lines, one figure each.
std::string to_text(const ReplayResult& result, const ReplayReportContents& contents, const Style& style);

// Returns one line for each trace under a heading.
std::string summary_table(const std::vector<ReplayResult>& results, const ReplayReportContents& contents,
                          const Style& style);

// Returns a JSON object on one line, without the newline.
std::string to_json(const ReplayResult& result, bool with_min_device);

// Returns "moe" for "data/traces/moe.csv.gz".
std::string trace_name(const std::string& path);

}  // namespace cachalot::tools
