// Remedies of a program that used much memory or ran out of it: what would have needed less, as replays of the same program show.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tools/analysis/causes.h"
#include "tools/analysis/timeline.h"
#include "tools/replay/policies.h"

namespace cachalot::tools {

// A remedy and its evidence.
struct Remedy {
  std::string key;                   // of JSON: "expandable_segments", "page_heap", "no_rounding", …
  std::string setting;               // the line to set, or what to change
  std::string text;                  // its effect
  std::uint64_t reserved_bytes = 0;  // at the peak of the replay with it, with the failed request
  HeldRange range{};                 // in which the real program's peak lies
  bool serves = false;               // the replay completes in the memory that the program had
  PolicyOffer offer{};               // with the bytes above
};

struct Remedies {
  std::uint64_t of_bytes = 0;  // the peak of the replay without a remedy, with the failed request
  // The peak that the file tells, where that replay, of a program without a failed request, differs from it.
  std::optional<std::uint64_t> recorded_bytes;
  std::vector<Remedy> best;  // at most three: the one to take (choose) first, then by bytes
};

// Replays the history under other settings.
Remedies find_remedies(const Timeline& timeline, const Evidence& evidence, Cause cause,
                       const std::vector<Growth>& growths);

}  // namespace cachalot::tools
