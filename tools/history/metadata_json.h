// Metadata of users, as JSON.
#pragma once

#include <string>

#include "tools/history/parts.h"

namespace cachalot::tools {

// Returns the value as JSON on one line. What nests deeper than 16 levels and what comes after the 256th value is
// replaced by "...": a file may name one part a thousand times, and that part another one.
std::string metadata_json(Parts& parts, const TextTable& texts, Part value);

}  // namespace cachalot::tools
