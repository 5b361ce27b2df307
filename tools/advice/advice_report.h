// Advice as text for people and as JSON for programs.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "tools/advice/advice.h"
#include "tools/style.h"

namespace cachalot::tools {

// Returns a table of the policies, the best first, and the recommendation.
std::string to_text(const Advice& advice, const Style& style);

// Returns a table of many programs with a line for each, first that with most bytes to be saved, at the end those that could
// not be read; and which settings are recommended how often.
std::string fleet_text(std::vector<Advice> advices, const Style& style);

// Returns a JSON object on one line, without the newline.
std::string to_json(const Advice& advice);

// Reads what to_json returns. Throws InvalidArgument for other text.
Advice advice_of_json(std::string_view text);

}  // namespace cachalot::tools
