// A sample as one JSON object: what `cachalot top --json` prints and what a record has in each line (docs/tools/top.md).
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "tools/live/sample.h"

namespace cachalot::tools::live {

nlohmann::ordered_json to_json(const Sample& sample);

// Limits for what is read: a line that exceeds one is refused.
inline constexpr std::size_t kMostSampleBytes = std::size_t{4} << 20;
inline constexpr int kMostSampleDepth = 8;
inline constexpr std::size_t kMostProcesses = 4096;

// Returns the sample that the JSON object describes. Unknown keys are ignored. Throws InvalidArgument, which names key and rule.
Sample parse_sample(std::string_view line);
// Returns the JSON value of a line of a file that nobody trusts. Throws InvalidArgument.
nlohmann::ordered_json parse_line(std::string_view line);

}  // namespace cachalot::tools::live
