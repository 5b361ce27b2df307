// The content of an out-of-memory message: the cause, and its figures for people and programs.
#pragma once

#include <string>

#include "tools/analysis/causes.h"
#include "tools/analysis/oom_message.h"
#include "tools/base/report_tree.h"

namespace cachalot::tools {

// Why memory ran out, as far as a message alone tells: a cause is named only from figures and words that the message has.
struct MessageVerdict {
  Cause cause = Cause::unknown;
  std::string text;  // one sentence
};

// Returns the first cause that the message proves; Cause::unknown, with what the message lacks, where it proves none.
MessageVerdict verdict_of(const OomMessage& message);

// Returns the figures of the message: lines for those that a history does not have as well, and for programs all of them, null
// where the message does not have one; docs/tools/json.md has the keys.
Section message_section(const OomMessage& message);

}  // namespace cachalot::tools
