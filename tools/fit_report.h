// What `cachalot fit` prints.
#pragma once

#include <string>

#include "tools/fit.h"
#include "tools/style.h"

namespace cachalot::tools {

// Returns a table for people: cards with the same memory and the same answers are one row. `verbose`: a row for each card.
std::string to_text(const FitReport& report, bool verbose, const Style& style);

// Returns a JSON object on one line without the newline.
std::string to_json(const FitReport& report);

}  // namespace cachalot::tools
