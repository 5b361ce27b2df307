// A copy engine of the simulated device: copies of one direction over the bus, one at a time. Not thread-safe; the
// device's mutex guards it.
#pragma once

#include <cstdint>
#include <map>

#include "cachalot/version.h"

CACHALOT_BEGIN

class CopyEngine {
 public:
  // Takes the engine for a copy that is asked for at `now_ns` and may not begin before `earliest_ns`; returns when it
  // ends. It begins as soon as the engine has nothing to do for so long: a copy that waits for its stream holds up none
  // that need not wait.
  std::int64_t take(std::int64_t now_ns, std::int64_t earliest_ns, std::int64_t duration_ns);

 private:
  std::map<std::int64_t, std::int64_t> busy_;  // when a copy begins, and when it ends; they do not overlap
};

CACHALOT_END
