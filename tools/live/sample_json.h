// A sample as one JSON object, as `cachalot top --json` prints it (docs/tools/json.md).
#pragma once

#include <nlohmann/json.hpp>

#include "tools/live/sample.h"

namespace cachalot::tools::live {

nlohmann::ordered_json to_json(const Sample& sample);

}  // namespace cachalot::tools::live
