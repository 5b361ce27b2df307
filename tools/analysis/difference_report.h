// A difference between two runs, for people and as JSON.
#pragma once

#include <string>

#include "tools/analysis/difference.h"
#include "tools/style.h"

namespace cachalot::tools {

// Both show of each list the `top` rows that changed most, and the sum of the others.
std::string to_text(const Difference& difference, std::size_t top, const Style& style);
// Returns one line without its newline; docs/tools/json.md has the keys.
std::string to_json(const Difference& difference, std::size_t top);

}  // namespace cachalot::tools
