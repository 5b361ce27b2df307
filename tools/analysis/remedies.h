// What would have needed less memory, as a replay of the same program shows.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "tools/analysis/causes.h"
#include "tools/history/history.h"

namespace cachalot::tools {

// A remedy and its evidence.
struct Remedy {
  std::string key;                   // of JSON: "expandable_segments", "page_heap", "no_rounding", …
  std::string setting;               // the line to set, or what to change
  std::string text;                  // what it does
  std::uint64_t reserved_bytes = 0;  // at the peak of the replay with it, with the failed request
  bool serves = false;               // the replay completes in the memory that the program had
};

struct Remedies {
  std::uint64_t of_bytes = 0;  // the peak of the replay without a remedy, with the failed request
  std::vector<Remedy> best;    // at most three: those that serve the request first, then by bytes
};

// Replays the history of `device` under other settings. The history is changed during the call and is as before at its end.
Remedies find_remedies(const History& history, DeviceHistory& device, const Evidence& evidence, Cause cause,
                       const std::vector<Growth>& growths, std::span<const Allocation> allocations, Sites& sites);

}  // namespace cachalot::tools
