// Why memory ran out, as far as a message alone tells: a cause is named only from figures and words that the message has.
#pragma once

#include <string>

#include "tools/analysis/causes.h"
#include "tools/analysis/oom_message.h"

namespace cachalot::tools {

struct MessageVerdict {
  Cause cause = Cause::unknown;
  std::string text;  // one sentence
};

// Returns the first cause that the message proves; Cause::unknown, with what the message lacks, where it proves none.
MessageVerdict verdict_of(const OomMessage& message);

}  // namespace cachalot::tools
