// The content of an out-of-memory message: the cause, its figures as text for people, and as JSON for programs.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "tools/analysis/causes.h"
#include "tools/analysis/oom_message.h"

namespace cachalot::tools {

// Why memory ran out, as far as a message alone tells: a cause is named only from figures and words that the message has.
struct MessageVerdict {
  Cause cause = Cause::unknown;
  std::string text;  // one sentence
};

// Returns the first cause that the message proves; Cause::unknown, with what the message lacks, where it proves none.
MessageVerdict verdict_of(const OomMessage& message);

// Returns a line for each figure of the message that a history does not have as well.
std::string message_text(const OomMessage& message);

// Returns the figures of the message, null where it does not have one; docs/tools/json.md has the keys.
nlohmann::ordered_json json_of_message(const OomMessage& message);

}  // namespace cachalot::tools
