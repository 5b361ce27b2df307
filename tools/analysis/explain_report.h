// An explanation as text for people and as JSON for programs.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "tools/analysis/explanation.h"
#include "tools/style.h"

namespace cachalot::tools {

// Returns lines: the moment and its cause, what was live, what was cached, and the remedies. `top` is the most lines of each
// list.
std::string to_text(const Explanation& explanation, std::size_t top, const Style& style);

// Returns one JSON object for all devices of a file, on one line, without the newline; docs/tools/json.md has its keys.
std::string to_json(const std::string& file, const std::string& settings, const std::vector<Explanation>& explanations,
                    std::size_t top);

}  // namespace cachalot::tools
