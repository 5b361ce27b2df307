#include "tools/analysis/checks.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <set>
#include <span>

#include "base/bytes.h"
#include "base/check.h"
#include "tools/analysis/categories.h"
#include "tools/analysis/recorded_trace.h"
#include "tools/analysis/timeline.h"
#include "tools/base/quoted.h"
#include "tools/base/text_layout.h"
#include "tools/replay/policies.h"

namespace cachalot::tools {
namespace {

// Requested bytes after each event.
std::vector<std::uint64_t> live_bytes_of(const Timeline& timeline) {
  HeldCursor cursor(timeline);
  std::vector<std::uint64_t> live;
  live.reserve(timeline.events().size());
  while (!cursor.is_at_end()) {
    cursor.advance();
    live.push_back(cursor.held().requested);
  }
  return live;
}

std::uint64_t growth(std::uint64_t from, std::uint64_t to) { return to > from ? to - from : 0; }

std::uint64_t leaked_in_all(const std::string& path, std::span<const std::uint64_t> live) {
  CACHALOT_REQUIRE(live.size() >= 3, "{}: --max-leak: the history has {} events, fewer than 3", path, live.size());
  const std::size_t third = live.size() / 3;
  return growth(*std::ranges::min_element(live.subspan(third, third)),
                *std::ranges::min_element(live.subspan(live.size() - third)));
}

// The stages that do occur, for the message.
std::string stage_names(const History& history) {
  std::set<std::string_view> names;
  for (const StageMark& mark : history.stages) names.insert(history.texts[mark.name]);
  if (names.empty()) return "it has no annotations";
  return fmt::format("it has {}, such as {}", format_count(names.size(), "annotation"), Quoted{*names.begin()});
}

std::uint64_t leaked_by_stage(const Timeline& timeline, std::span<const std::uint64_t> live, const std::string& stage) {
  const History& history = timeline.history();
  const DeviceHistory& device = timeline.device();
  std::vector<std::uint64_t> at_begin;
  std::size_t event = 0;
  for (const StageMark& mark : history.stages) {
    if (!mark.begins || mark.device != device.device || !matches_glob(stage, history.texts[mark.name])) continue;
    while (event < device.events.size() && device.events[event].time_us < mark.time_us) ++event;
    if (event > 0) at_begin.push_back(live[event - 1]);
  }
  CACHALOT_REQUIRE(at_begin.size() >= 3, "{}: --max-leak: the stage {} begins {} in the history, less than 3 times; {}",
                   history.path, fmt::to_string(Quoted{stage}), times_text(at_begin.size()), stage_names(history));
  const std::size_t first = at_begin.size() / 2;
  return growth(at_begin[first], at_begin.back()) / (at_begin.size() - 1 - first);
}

// ---- figures

CheckedFigures recorded_figures(const Timeline& timeline, const CheckLimits& limits) {
  CheckedFigures figures;
  figures.earlier_bytes = timeline.earlier_bytes();
  figures.peak_bytes = timeline.most_held().requested;
  figures.reserved_bytes = timeline.most_held().reserved;
  const bool needs_reserved = limits.most_fragmentation || limits.most_reserved_bytes;
  CACHALOT_REQUIRE(!needs_reserved || figures.reserved_bytes > 0,
                   "{}: the file does not say what was reserved: --policy replays its allocations",
                   timeline.history().path);
  for (const HistoryEvent& event : timeline.events()) {
    figures.allocations += event.action == HistoryEvent::Action::alloc ? 1 : 0;
    figures.ooms += event.action == HistoryEvent::Action::oom ? 1 : 0;
  }
  return figures;
}

// The requests that failed are played, too: another policy may serve them.
CheckedFigures replayed_figures(const Timeline& timeline, const Policy& policy, std::size_t device_bytes) {
  const Trace trace = program_trace_of(timeline);
  const PolicyFigures replayed = *tools::figures_of(trace, policy, device_bytes);
  CheckedFigures figures;
  figures.peak_bytes = peak_live_bytes(replayed.ooms == 0 ? trace : trace_of(timeline, {.plays_failures = false}));
  figures.reserved_bytes = replayed.peak_held_bytes;
  figures.ooms = replayed.ooms;
  return figures;
}

CheckedFigures figures_of(const Timeline& timeline, const CheckLimits& limits, const CheckPolicy& policy) {
  CheckLimits without_reserved = limits;
  without_reserved.most_fragmentation.reset();
  without_reserved.most_reserved_bytes.reset();
  CheckedFigures figures = recorded_figures(timeline, policy.name.empty() ? limits : without_reserved);
  if (!policy.name.empty()) {
    const std::uint64_t allocations = figures.allocations;
    figures = replayed_figures(timeline, policy_named(policy.name), policy.device_bytes);
    figures.allocations = allocations;
  }
  if (figures.reserved_bytes > 0) {
    const auto part = static_cast<double>(figures.peak_bytes) / static_cast<double>(figures.reserved_bytes);
    figures.fragmentation = std::max(0.0, 1 - part);
  }
  if (limits.most_leak) figures.leaked_bytes = leaked_bytes(timeline, limits.most_leak->stage);
  return figures;
}

// ---- rules

CheckedRule rule_of_bytes(std::string rule, std::uint64_t limit, std::uint64_t figure) {
  return {.rule = std::move(rule),
          .limit = format_bytes(limit),
          .figure = format_bytes(figure),
          .limit_number = limit,
          .figure_number = figure,
          .holds = figure <= limit};
}

CheckedRule rule_of_count(std::string rule, std::uint64_t limit, std::uint64_t figure) {
  CheckedRule checked = rule_of_bytes(std::move(rule), limit, figure);
  checked.limit = with_commas(limit);
  checked.figure = with_commas(figure);
  return checked;
}

std::vector<CheckedRule> rules_of(const CheckLimits& limits, const CheckedFigures& figures) {
  std::vector<CheckedRule> rules;
  if (limits.most_fragmentation) {
    rules.push_back({.rule = "max_fragmentation",
                     .limit = fmt::format("{:.2f} %", 100 * *limits.most_fragmentation),
                     .figure = fmt::format("{:.2f} %", 100 * figures.fragmentation),
                     .limit_number = *limits.most_fragmentation,
                     .figure_number = figures.fragmentation,
                     .holds = figures.fragmentation <= *limits.most_fragmentation});
  }
  if (limits.most_peak_bytes) rules.push_back(rule_of_bytes("max_peak", *limits.most_peak_bytes, figures.peak_bytes));
  if (limits.most_reserved_bytes) {
    rules.push_back(rule_of_bytes("max_reserved", *limits.most_reserved_bytes, figures.reserved_bytes));
  }
  if (limits.most_leak) {
    rules.push_back(rule_of_bytes("max_leak", limits.most_leak->bytes, figures.leaked_bytes));
    const std::string& stage = limits.most_leak->stage;
    if (!stage.empty()) rules.back().limit += " in each " + stage;
  }
  if (limits.most_allocations) {
    rules.push_back(rule_of_count("max_allocations", *limits.most_allocations, figures.allocations));
  }
  if (limits.no_oom) rules.push_back(rule_of_count("no_oom", 0, figures.ooms));
  return rules;
}

}  // namespace

bool CheckLimits::is_empty() const {
  return !most_fragmentation && !most_peak_bytes && !most_reserved_bytes && !most_leak && !most_allocations && !no_oom;
}

bool Check::holds() const {
  return std::ranges::all_of(
      devices, [](const DeviceCheck& device) { return std::ranges::all_of(device.rules, &CheckedRule::holds); });
}

std::uint64_t leaked_bytes(const Timeline& timeline, const std::string& stage) {
  const std::vector<std::uint64_t> live = live_bytes_of(timeline);
  return stage.empty() ? leaked_in_all(timeline.history().path, live) : leaked_by_stage(timeline, live, stage);
}

Check check_history(const Timelines& timelines, const CheckLimits& limits, const CheckPolicy& policy) {
  const History& history = timelines.history();
  CACHALOT_REQUIRE(!limits.is_empty(), "{}: there is no limit to check", history.path);
  CACHALOT_REQUIRE(!history.devices.empty(), "{}: the file has no memory of a device", history.path);
  Check check{.path = history.path, .policy = policy.name, .devices = {}};
  // A device without events, beside one that has a history, needs no check.
  const bool has_history = std::ranges::any_of(history.devices, has_trace);
  CACHALOT_REQUIRE(has_history || !limits.needs_history(),
                   "{}: the file has no history: it tells the memory at its end, and neither peaks nor failures",
                   history.path);
  for (const Timeline& timeline : timelines.devices()) {
    const DeviceHistory& device = timeline.device();
    if (has_history && !has_trace(device) && device.blocks.empty()) continue;
    const CheckedFigures figures = figures_of(timeline, limits, policy);
    check.devices.push_back({.device = device.device, .figures = figures, .rules = rules_of(limits, figures)});
  }
  return check;
}

}  // namespace cachalot::tools
