// What `cachalot explain` says of a device: what held its memory when it ran out or peaked, why, and what would help.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tools/analysis/categories.h"
#include "tools/analysis/causes.h"
#include "tools/analysis/oom_message.h"
#include "tools/analysis/remedies.h"
#include "tools/analysis/shares.h"
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

// A line of the program, by name, for reports: Pin and Growth without their numbers.
struct NamedPin {
  std::string at;
  Pin pin;
};
struct NamedGrowth {
  std::string at;
  std::uint64_t bytes = 0;
  std::size_t allocations = 0;
};

// Calls of the moment as lines of a tree, the outermost first.
struct TreeLine {
  std::size_t depth = 0;
  std::uint64_t bytes = 0;
  std::uint64_t count = 0;
  std::string at;
};

struct Explanation {
  int device = 0;
  bool is_host = false;  // of pinned host memory
  std::size_t events = 0;
  Peak peak;                              // of what is reported: where memory ran out, else the peak of allocated bytes
  std::int64_t since_begin_us = 0;        // of the peak
  std::string at;                         // the line that made the last request; "" where it is not known
  std::uint64_t peak_reserved_bytes = 0;  // of the whole history
  Evidence evidence;
  Cause cause = Cause::none;
  std::string text;  // of the cause, one sentence
  Shares shares;
  std::vector<NamedPin> pins;
  std::vector<NamedGrowth> growths;
  std::vector<Temporary> temporaries;
  std::vector<TreeLine> tree;
  Remedies remedies;
};

// Returns the explanation of one device. `device` is one of history.devices or, with options.is_host, of history.host; it is changed
// for the replays, and is afterwards as before. Throws InvalidArgument where a trace of it cannot be replayed.
Explanation explain(const History& history, DeviceHistory& device, const CategoryRules& rules,
                    const ExplainOptions& options);

// Returns "device 0" or "pinned host memory".
std::string name_of(const Explanation& explanation);

// Returns the explanation of a message alone.
Explanation explain_message(const History& history, const ExplainOptions& options);

// Returns the sentence for the cause: "300.00 MiB were asked for; 540.00 MiB are free in 20 pieces of at most 56.00 MiB …".
std::string sentence_of(const Explanation& explanation);

}  // namespace cachalot::tools
