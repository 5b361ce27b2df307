// The report of `cachalot explain` on a device: the holders of its memory when it ran out or peaked, the cause, and
// remedies.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "tools/analysis/categories.h"
#include "tools/analysis/causes.h"
#include "tools/analysis/failing_process.h"
#include "tools/analysis/holders.h"
#include "tools/analysis/oom_message.h"
#include "tools/analysis/remedies.h"
#include "tools/analysis/sites.h"
#include "tools/analysis/timeline.h"
#include "tools/history/history.h"

namespace cachalot::tools {

struct ExplainOptions {
  Frames frames = Frames::own;               // that lines and trees show
  std::optional<OomMessage> message;         // of the error
  std::optional<std::uint64_t> total_bytes;  // of the device, where the file does not tell it
  bool has_tree = false;
  bool replays = true;   // for remedies
  bool is_host = false;  // the memory is pinned host memory, which has no cause and no remedy here
};

struct Explanation {
  int device = 0;
  bool is_host = false;  // of pinned host memory
  std::size_t events = 0;
  Moment peak;                            // the reported moment: where memory ran out, else the peak of allocated bytes
  std::int64_t since_begin_us = 0;        // of the peak
  std::string at;                         // the line that made the last request; "" where it is not known
  std::uint64_t peak_reserved_bytes = 0;  // of the whole history
  std::uint64_t earlier_bytes = 0;        // that were allocated when the history begins
  Evidence evidence;
  Cause cause = Cause::none;
  std::string text;            // of the cause, one sentence
  std::string recommendation;  // the first thing to do; "" where the file does not tell enough
  Shares shares;
  std::vector<Pin> pins;
  std::vector<Growth> growths;
  std::vector<Temporary> temporaries;
  std::vector<TreeLine> tree;
  Remedies remedies;
  std::optional<OomMessage> message;      // that it is of, where no history tells more
  std::optional<FailingProcess> process;  // of a file that the process wrote
};

// Returns the explanation of one device or, with options.is_host, of pinned host memory. Throws InvalidArgument where a trace of
// it cannot be replayed.
Explanation explain(const Timeline& timeline, const CategoryRules& rules, const ExplainOptions& options);

// Returns "device 0", with the rank whose message it is, or "pinned host memory".
std::string name_of(const Explanation& explanation);

// Returns the explanation of a message alone. `total_bytes` is the device's memory, where the message does not tell it.
Explanation explain_message(const OomMessage& message, std::optional<std::uint64_t> total_bytes);

}  // namespace cachalot::tools
