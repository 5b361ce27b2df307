// What a message that memory ran out tells, as text for people and as JSON for programs.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "tools/analysis/oom_message.h"

namespace cachalot::tools {

// Returns a line for each figure of the message that a history does not have as well.
std::string message_text(const OomMessage& message);

// Returns the figures of the message, null where it does not have one; docs/tools/json.md has the keys.
nlohmann::ordered_json json_of_message(const OomMessage& message);

}  // namespace cachalot::tools
