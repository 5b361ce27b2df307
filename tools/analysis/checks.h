// Limits that a program's memory must keep, for tests and CI, and whether a history keeps them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "tools/analysis/timeline.h"
#include "tools/history/history.h"
#include "tools/replay/replay.h"
#include "tools/replay/trace_reader.h"

namespace cachalot::tools {

// The memory that may leak: in the whole history, or from one begin of a stage to its next.
struct LeakLimit {
  std::uint64_t bytes = 0;
  std::string stage;  // "": in the whole history
};

// At least one is given.
struct CheckLimits {
  std::optional<double> most_fragmentation = std::nullopt;      // 0 to 1
  std::optional<std::uint64_t> most_peak_bytes = std::nullopt;  // requested
  std::optional<std::uint64_t> most_reserved_bytes = std::nullopt;
  std::optional<LeakLimit> most_leak = std::nullopt;
  std::optional<std::uint64_t> most_allocations = std::nullopt;
  bool no_oom = false;

  bool is_empty() const;
  // Returns whether a limit concerns events before the end.
  bool needs_history() const { return no_oom || most_peak_bytes || most_allocations; }
};

// The figures of one device that limits apply to.
struct CheckedFigures {
  std::uint64_t peak_bytes = 0;      // the most requested bytes that live at once
  std::uint64_t reserved_bytes = 0;  // the most that are reserved
  double fragmentation = 0;          // 1 - peak_bytes / reserved_bytes
  std::uint64_t leaked_bytes = 0;    // of the leak's limit
  std::uint64_t allocations = 0;     // that the history makes
  std::uint64_t ooms = 0;
  std::uint64_t earlier_bytes = 0;  // that were allocated when the history begins: what was before is not known
};

using CheckedNumber = std::variant<std::uint64_t, double>;  // bytes or a count; a part

struct CheckedRule {
  std::string rule;    // "max_peak": as the option
  std::string limit;   // as people read it
  std::string figure;  // likewise
  CheckedNumber limit_number;
  CheckedNumber figure_number;
  bool holds = true;
};

struct DeviceCheck {
  int device = 0;
  CheckedFigures figures;
  std::vector<CheckedRule> rules;  // those that were asked for
};

struct Check {
  std::string path;
  std::string policy;  // "" for the recorded run
  std::vector<DeviceCheck> devices;

  bool holds() const;
};

// The policy to be checked in the place of the recorded one.
struct CheckPolicy {
  std::string name;  // policy_named, or "" for the recorded one
  std::size_t device_bytes = ReplayOptions().device_bytes;
};

// Returns what holds. Throws InvalidArgument where the history does not tell what a limit is about.
Check check_history(const Timelines& timelines, const CheckLimits& limits, const CheckPolicy& policy);

// Returns the leaked bytes. In the whole history: by how much the lowest level of requested bytes rises from its second third
// to its last third. Of a stage: by how much what lives at its begin grows from one to the next, on average over the second
// half of its begins. Throws InvalidArgument where there are fewer than three events, or begins.
std::uint64_t leaked_bytes(const Timeline& timeline, const std::string& stage);

}  // namespace cachalot::tools
