#include "tools/analysis/difference.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "base/check.h"
#include "tools/analysis/timeline.h"
#include "tools/base/quoted.h"

namespace cachalot::tools {
namespace {

constexpr std::size_t kMostPairs = 1'000'000;

using SameLine = std::vector<FrameId>;            // frames that differ in what a compiler made of the line
using Lines = std::map<std::uint32_t, SameLine>;  // of one function, in one file
using Functions = std::map<std::string_view, Lines>;
using Files = std::map<std::string_view, Functions>;

Files files_of(const History& history, std::span<const FrameId> frames) {
  Files files;
  for (const FrameId id : frames) {
    const StackFrame& frame = history.stacks.frame(id);
    files[history.texts[frame.file]][history.texts[frame.function]][frame.line].push_back(id);
  }
  return files;
}

// ---- files

std::string_view last_part(std::string_view path) { return path.substr(path.rfind('/') + 1); }

std::size_t common_end(std::string_view a, std::string_view b) {
  return static_cast<std::size_t>(std::ranges::mismatch(a.rbegin(), a.rend(), b.rbegin(), b.rend()).in1 - a.rbegin());
}

using FilePairs = std::vector<std::pair<std::string_view, std::string_view>>;

// Matches files with one name: the pairs with the longest common ends first.
void match_by_ends(const std::vector<std::string_view>& a, const std::vector<std::string_view>& b, FilePairs& pairs) {
  if (a.size() * b.size() > kMostPairs) return;
  std::vector<std::tuple<std::size_t, std::size_t, std::size_t>> candidates;  // common end, indexes
  for (std::size_t i = 0; i < a.size(); ++i) {
    for (std::size_t j = 0; j < b.size(); ++j) candidates.emplace_back(common_end(a[i], b[j]), i, j);
  }
  std::ranges::stable_sort(candidates, std::ranges::greater{}, [](const auto& each) { return std::get<0>(each); });
  std::vector<bool> used_a(a.size());
  std::vector<bool> used_b(b.size());
  for (const auto& [length, i, j] : candidates) {
    if (used_a[i] || used_b[j]) continue;
    used_a[i] = used_b[j] = true;
    pairs.emplace_back(a[i], b[j]);
  }
}

FilePairs match_files(const Files& a, const Files& b) {
  FilePairs pairs;
  std::map<std::string_view, std::vector<std::string_view>> rest_a;  // by file name
  std::map<std::string_view, std::vector<std::string_view>> rest_b;
  for (const auto& [path, functions] : a) {
    b.contains(path) ? void(pairs.emplace_back(path, path)) : rest_a[last_part(path)].push_back(path);
  }
  for (const auto& [path, functions] : b) {
    if (!a.contains(path)) rest_b[last_part(path)].push_back(path);
  }
  for (const auto& [name, paths] : rest_a) {
    const auto others = rest_b.find(name);
    if (others != rest_b.end()) match_by_ends(paths, others->second, pairs);
  }
  return pairs;
}

// ---- lines of a function

std::int64_t best_shift(const Lines& a, const Lines& b) {
  if (a.size() * b.size() > kMostPairs) return 0;
  std::map<std::int64_t, std::size_t> votes;
  for (const auto& [line_a, frames_a] : a) {
    for (const auto& [line_b, frames_b] : b) ++votes[std::int64_t{line_b} - std::int64_t{line_a}];
  }
  const auto rank = [](const auto& vote) { return std::tuple(vote.second, -std::abs(vote.first), vote.first); };
  return std::ranges::max_element(votes, {}, rank)->first;
}

// Pairs lines, and what lies between two that belong together, if it is as much on both sides.
class LineMatcher {
 public:
  explicit LineMatcher(std::map<FrameId, FrameId>& matched) : matched_(matched) {}

  void leave_a(const SameLine& line) { gap_a_.push_back(&line); }
  void leave_b(const SameLine& line) { gap_b_.push_back(&line); }
  void match(const SameLine& a, const SameLine& b) {
    for (const FrameId frame : a) matched_[frame] = b.front();
  }
  void end_gap() {
    for (std::size_t i = 0; gap_a_.size() == gap_b_.size() && i < gap_a_.size(); ++i) match(*gap_a_[i], *gap_b_[i]);
    gap_a_.clear();
    gap_b_.clear();
  }

 private:
  std::map<FrameId, FrameId>& matched_;
  std::vector<const SameLine*> gap_a_;
  std::vector<const SameLine*> gap_b_;
};

void match_lines(const Lines& a, const Lines& b, std::map<FrameId, FrameId>& matched) {
  const std::int64_t shift = best_shift(a, b);
  LineMatcher matcher(matched);
  auto next_b = b.begin();
  for (const auto& [line, frames] : a) {
    const std::int64_t shifted = std::int64_t{line} + shift;
    const auto partner = shifted < 0 ? b.end() : b.find(static_cast<std::uint32_t>(shifted));
    if (partner == b.end()) {
      matcher.leave_a(frames);
      continue;
    }
    for (; next_b != partner; ++next_b) matcher.leave_b(next_b->second);
    ++next_b;
    matcher.end_gap();
    matcher.match(frames, partner->second);
  }
  for (; next_b != b.end(); ++next_b) matcher.leave_b(next_b->second);
  matcher.end_gap();
}

}  // namespace

FrameMatching::FrameMatching(const History& a, std::span<const FrameId> frames_a, const History& b,
                             std::span<const FrameId> frames_b) {
  const Files files_a = files_of(a, frames_a);
  const Files files_b = files_of(b, frames_b);
  for (const auto& [path_a, path_b] : match_files(files_a, files_b)) {
    const Functions& functions_b = files_b.at(path_b);
    for (const auto& [function, lines] : files_a.at(path_a)) {
      const auto other = functions_b.find(function);
      if (other != functions_b.end()) match_lines(lines, other->second, matched_);
    }
  }
}

std::optional<FrameId> FrameMatching::in_b(FrameId frame_of_a) const {
  const auto found = matched_.find(frame_of_a);
  if (found == matched_.end()) return std::nullopt;
  return found->second;
}

std::string without_numbers(std::string_view name) {
  std::string text;
  bool in_number = false;
  for (const char c : name) {
    const bool is_digit = std::isdigit(static_cast<unsigned char>(c)) != 0;
    if (!is_digit) text += c;
    if (is_digit && !in_number) text += '*';
    in_number = is_digit;
  }
  return text;
}

namespace {

// Two runs side by side in time.

// A device of one run. `device` is nullptr where the run lacks it.
struct ComparedRun {
  const History* history = nullptr;
  const DeviceHistory* device = nullptr;
  std::span<const Allocation> allocations;
};

// The events at which an outermost stage begins, by its name.
std::map<std::string, std::vector<std::size_t>> stage_begins(const ComparedRun& run) {
  std::map<std::string, std::vector<std::size_t>> begins;
  if (run.device == nullptr) return begins;
  const Stages stages(*run.history, *run.device);
  TextId open = 0;
  for (std::size_t event = 0; event < run.device->events.size(); ++event) {
    const std::vector<TextId>& now = stages.open(stages.at(event));
    const TextId outermost = now.empty() ? 0 : now.front();
    if (outermost != open && outermost != 0) begins[without_numbers(run.history->texts[outermost])].push_back(event);
    open = outermost;
  }
  return begins;
}

struct Alignment {
  std::string by = "events";
  std::array<std::vector<std::size_t>, 2> begins;  // of the parts, by event
  std::vector<double> marks;                       // the begins of the parts, and the end of the last
};

std::size_t events_of(const ComparedRun& run) { return run.device == nullptr ? 0 : run.device->events.size(); }

using Begins = std::vector<std::size_t>;

// The stage that both have most often, if they have one twice.
Alignment by_stage(const ComparedRun& a, const ComparedRun& b) {
  const std::map<std::string, Begins> begins_a = stage_begins(a);
  const std::map<std::string, Begins> begins_b = stage_begins(b);
  Alignment best;
  std::size_t most = 1;
  for (const auto& [name, events] : begins_a) {
    const auto other = begins_b.find(name);
    if (other == begins_b.end()) continue;
    const std::size_t both = std::min(events.size(), other->second.size());
    if (both <= most) continue;
    most = both;
    best = {.by = name, .begins = {events, other->second}, .marks = {}};
    for (Begins& each : best.begins) each.resize(both);
  }
  return best;
}

// Puts stages together, where there are more than parts.
void divide(Alignment& alignment, std::size_t parts) {
  const std::array<Begins, 2> all = std::exchange(alignment.begins, {});
  const std::size_t stages = all[0].size();
  parts = std::min(parts, stages);
  for (std::size_t i = 0; i < parts; ++i) {
    const std::size_t stage = stages * i / parts;
    for (std::size_t run = 0; run < all.size(); ++run) alignment.begins[run].push_back(all[run][stage]);
    alignment.marks.push_back(static_cast<double>(stage));
  }
  alignment.marks.push_back(static_cast<double>(stages));
}

Alignment by_share(const ComparedRun& a, const ComparedRun& b, std::size_t parts) {
  Alignment alignment;
  for (std::size_t i = 0; i < parts; ++i) {
    alignment.begins[0].push_back(events_of(a) * i / parts);
    alignment.begins[1].push_back(events_of(b) * i / parts);
    alignment.marks.push_back(static_cast<double>(i) / static_cast<double>(parts));
  }
  alignment.marks.push_back(1);
  return alignment;
}

// The most requested bytes from each begin to the next; in the first part from the state before it on.
std::vector<std::uint64_t> peaks_of(const ComparedRun& run, const std::vector<std::size_t>& begins) {
  std::vector<std::uint64_t> peaks(begins.size());
  if (run.device == nullptr) return peaks;
  const std::vector<std::uint64_t> blocks = block_bytes_of(*run.device, run.allocations);
  HeldCursor cursor(*run.device, run.allocations, blocks);
  std::size_t next = 0;  // the part that begins next
  const auto look = [&] {
    while (next < begins.size() && begins[next] <= cursor.event()) ++next;
    if (next > 0) peaks[next - 1] = std::max(peaks[next - 1], cursor.held().requested);
  };
  for (look(); !cursor.is_at_end(); look()) cursor.advance();
  return peaks;
}

// Divides both runs by the begins of a stage that both have at least twice, the one that both have most often; without such
// by equal shares of the events. There are at most `parts` of them. Sets aligned_by and parts.
void compare_in_time(const ComparedRun& a, const ComparedRun& b, std::size_t parts, DeviceDifference& difference) {
  Alignment alignment = by_stage(a, b);
  if (alignment.by == "events") {
    alignment = by_share(a, b, parts);
  } else {
    divide(alignment, parts);
  }
  const std::vector<std::uint64_t> peaks_a = peaks_of(a, alignment.begins[0]);
  const std::vector<std::uint64_t> peaks_b = peaks_of(b, alignment.begins[1]);
  difference.aligned_by = alignment.by;
  for (std::size_t i = 0; i < peaks_a.size(); ++i) {
    difference.parts.push_back(
        {.begin = alignment.marks[i], .end = alignment.marks[i + 1], .peak_bytes = {peaks_a[i], peaks_b[i]}});
  }
}

constexpr const char* kNoStack = "(no call stack was recorded)";
constexpr std::array kLists = {"category", "line", "module", "pool", "stage"};

// The memory of one device of one run at the compared moment.
struct Side {
  Side(const History& of_history, const DeviceHistory* of_device, const CategoryRules& rules,
       const DifferenceOptions& options)
      : history(of_history), device(of_device), sites(of_history), categorizer(of_history, rules) {
    if (device == nullptr) return;
    allocations = allocations_of(*device);
    categories = categorizer.categories_of(*device, allocations);
    stages.emplace(history, *device);
    peak = asked_peak(history.path, *device, allocations, options.at);
  }

  ComparedRun run() const { return {&history, device, allocations}; }

  DifferenceMoment moment() const {
    return {.event = peak.event,
            .events = device == nullptr ? 0 : device->events.size(),
            .requested_bytes = peak.held.requested,
            .allocated_bytes = peak.held.allocated,
            .reserved_bytes = peak.held.reserved};
  }

  // The frames by which rows are named: places, and calls of forward.
  std::vector<FrameId> naming_frames(Frames frames) {
    std::set<FrameId> found;
    for (const std::uint32_t live : peak.live) {
      const StackId stack = stack_of(allocations[live]);
      if (stack == 0) continue;
      found.insert(sites.place_of(stack, frames));
      for (const FrameId frame : history.stacks[stack]) {
        if (is_forward(frame)) found.insert(frame);
      }
    }
    return {found.begin(), found.end()};
  }

  StackId stack_of(const Allocation& allocation) { return sites.telling_stack(allocation.stack, allocation.details); }
  bool is_forward(FrameId frame) const { return history.texts[history.stacks.frame(frame).function] == "forward"; }

  const History& history;
  const DeviceHistory* device;
  Sites sites;
  Categorizer categorizer;
  std::vector<Allocation> allocations;
  std::vector<Category> categories;
  std::optional<Stages> stages;
  Peak peak;
};

// ---- names of rows, which are the same on both sides for what belongs together

// Calls in the second run's words.
class Namer {
 public:
  Namer(Side& a, Side& b, Frames frames)
      : a_(a),
        b_(b),
        frames_(frames),
        matching_(a.history, a.naming_frames(frames), b.history, b.naming_frames(frames)) {}

  std::string line_of(Side& side, const Allocation& allocation) {
    const StackId stack = side.stack_of(allocation);
    return stack == 0 ? kNoStack : text_of(side, side.sites.place_of(stack, frames_));
  }
  // Returns the name of the line in its own run.
  std::string own_line_of(Side& side, const Allocation& allocation) {
    const StackId stack = side.stack_of(allocation);
    return stack == 0 ? kNoStack : side.sites.text_of(side.sites.place_of(stack, frames_));
  }
  // Returns the calls of forward, the outermost first.
  std::string module_of(Side& side, const Allocation& allocation) {
    constexpr std::size_t kLongest = 400;
    std::string module;
    for (const FrameId frame : side.history.stacks[side.stack_of(allocation)]) {
      if (!side.is_forward(frame) || module.size() > kLongest) continue;
      module.insert(0, text_of(side, frame) + (module.empty() ? "" : " > "));
    }
    return module.empty() ? "(outside of modules)" : module;
  }
  static std::string pool_of(Side& side, const Allocation& allocation) {
    const PoolId pool = side.history.pools[allocation.pool];
    return pool.is_default() ? "default" : fmt::format("({}, {})", pool.first, pool.second);
  }
  static std::string stage_of(Side& side, const Allocation& allocation) {
    if (allocation.begin == Allocation::kBefore) return "(before the history)";
    const std::string name = without_numbers(side.stages->name(side.stages->at(allocation.begin)));
    return name.empty() ? "(outside of stages)" : name;
  }

 private:
  std::string text_of(Side& side, FrameId frame) {
    const std::optional<FrameId> in_b = &side == &a_ ? matching_.in_b(frame) : std::nullopt;
    return in_b ? b_.sites.text_of(*in_b) : side.sites.text_of(frame);
  }

  Side& a_;
  Side& b_;
  Frames frames_;
  FrameMatching matching_;
};

// ---- rows

class ListMaker {
 public:
  void add(const std::string& name, bool is_b, std::uint64_t bytes, const std::string& was = "") {
    DifferenceRow& row = rows_[name];
    row.name = name;
    if (!was.empty() && was != name) row.was = was;
    (is_b ? row.bytes.b : row.bytes.a) += bytes;
    ++(is_b ? row.count.b : row.count.a);
  }

  std::vector<DifferenceRow> rows() const {
    std::vector<DifferenceRow> rows;
    for (const auto& [name, row] : rows_) rows.push_back(row);
    std::ranges::stable_sort(rows, std::ranges::greater{}, [](const DifferenceRow& row) { return row.bytes.growth(); });
    return rows;
  }

 private:
  std::map<std::string, DifferenceRow> rows_;
};

std::vector<DifferenceList> lists_of(Side& a, Side& b, Frames frames) {
  Namer namer(a, b, frames);
  std::array<ListMaker, kLists.size()> makers;
  for (Side* side : {&a, &b}) {
    const bool is_b = side == &b;
    for (const std::uint32_t live : side->peak.live) {
      const Allocation& allocation = side->allocations[live];
      const std::string was = is_b ? "" : namer.own_line_of(*side, allocation);
      makers[0].add(std::string(side->categorizer.name_of(side->categories[live])), is_b, allocation.bytes);
      makers[1].add(namer.line_of(*side, allocation), is_b, allocation.bytes, was);
      makers[2].add(namer.module_of(*side, allocation), is_b, allocation.bytes);
      makers[3].add(Namer::pool_of(*side, allocation), is_b, allocation.bytes);
      makers[4].add(Namer::stage_of(*side, allocation), is_b, allocation.bytes);
    }
  }
  std::vector<DifferenceList> lists;
  for (std::size_t i = 0; i < makers.size(); ++i) lists.push_back({kLists[i], makers[i].rows()});
  return lists;
}

// ---- devices

using DevicePair = std::pair<const DeviceHistory*, const DeviceHistory*>;

std::vector<DevicePair> device_pairs(const History& a, const History& b) {
  for (const History* history : {&a, &b}) {
    CACHALOT_REQUIRE(!history->devices.empty(), "{}: the file has no memory of a device", history->path);
  }
  // A rank's file has the device of that rank.
  if (a.devices.size() == 1 && b.devices.size() == 1) return {{&a.devices.front(), &b.devices.front()}};
  std::map<int, DevicePair> pairs;
  for (const DeviceHistory& device : a.devices) pairs[device.device].first = &device;
  for (const DeviceHistory& device : b.devices) pairs[device.device].second = &device;
  std::vector<DevicePair> in_order;
  in_order.reserve(pairs.size());
  for (const auto& [number, pair] : pairs) in_order.push_back(pair);
  return in_order;
}

}  // namespace

const char* DifferenceRow::change() const {
  if (count.a == 0) return "new";
  if (count.b == 0) return "gone";
  if (bytes.growth() == 0) return "same";
  return bytes.growth() > 0 ? "grown" : "shrunk";
}

Difference difference_of(const History& a, const History& b, const CategoryRules& rules,
                         const DifferenceOptions& options) {
  Difference difference{.paths = {a.path, b.path}, .at = options.at, .devices = {}};
  for (const auto& [device_a, device_b] : device_pairs(a, b)) {
    Side side_a(a, device_a, rules, options);
    Side side_b(b, device_b, rules, options);
    DeviceDifference device;
    if (device_a != nullptr) device.device[0] = device_a->device;
    if (device_b != nullptr) device.device[1] = device_b->device;
    device.moment = {side_a.moment(), side_b.moment()};
    device.lists = lists_of(side_a, side_b, options.frames);
    compare_in_time(side_a.run(), side_b.run(), options.parts, device);
    difference.devices.push_back(std::move(device));
  }
  return difference;
}

namespace {

using Json = nlohmann::ordered_json;

std::string signed_bytes(std::int64_t bytes) {
  const std::string size = format_bytes(static_cast<std::size_t>(std::abs(bytes)));
  return bytes == 0 ? size : (bytes > 0 ? "+" : "-") + size;
}

// The rows that changed most, in their order, and the sum of the others.
struct ShownRows {
  std::vector<const DifferenceRow*> rows;
  std::size_t other_count = 0;
  Pair other_bytes;
};

ShownRows shown_rows(const DifferenceList& list, std::size_t top) {
  std::vector<std::size_t> by_change(list.rows.size());
  for (std::size_t i = 0; i < by_change.size(); ++i) by_change[i] = i;
  const auto rank = [&](std::size_t i) {
    const Pair& bytes = list.rows[i].bytes;
    return std::pair(std::abs(bytes.growth()), std::max(bytes.a, bytes.b));
  };
  std::ranges::stable_sort(by_change, std::ranges::greater{}, rank);
  ShownRows shown;
  for (std::size_t i = top; i < by_change.size(); ++i) {
    const Pair& bytes = list.rows[by_change[i]].bytes;
    ++shown.other_count;
    shown.other_bytes = {shown.other_bytes.a + bytes.a, shown.other_bytes.b + bytes.b};
  }
  by_change.resize(std::min(top, by_change.size()));
  std::ranges::sort(by_change);
  for (const std::size_t i : by_change) shown.rows.push_back(&list.rows[i]);
  return shown;
}

// ---- text

std::string figures_text(const Pair& bytes) {
  return fmt::format("{:>14} {:>14} {:>14}", signed_bytes(bytes.growth()), format_bytes(bytes.a),
                     format_bytes(bytes.b));
}

std::string row_text(const DifferenceRow& row) {
  std::string note;
  if (row.count.a == 0) note = "  (new)";
  if (row.count.b == 0) note = "  (gone)";
  if (!row.was.empty()) note = fmt::format("  (A: {})", Printable{row.was});
  return fmt::format("{}  {}{}\n", figures_text(row.bytes), Printable{row.name}, note);
}

std::string list_text(const DifferenceList& list, std::size_t top, const Style& style) {
  const ShownRows shown = shown_rows(list, top);
  std::string text = style.bold(fmt::format("{:>14} {:>14} {:>14}  {}", "growth", "A", "B", list.name)) + "\n";
  for (const DifferenceRow* row : shown.rows) text += row_text(*row);
  if (shown.other_count > 0) {
    text += style.faint(fmt::format("{}  ({} more)", figures_text(shown.other_bytes), with_commas(shown.other_count)));
    text += "\n";
  }
  return text + "\n";
}

// A list with one row says nothing that the whole does not.
bool is_telling(const DifferenceList& list) { return list.rows.size() > 1 || list.name == "category"; }

// Stages count from 1 for people.
std::string numbers_text(const DifferencePart& part) {
  if (part.end - part.begin < 2) return fmt::format("number {:.0f}", part.begin + 1);
  return fmt::format("numbers {:.0f} to {:.0f}", part.begin + 1, part.end);
}

std::string time_text(const DeviceDifference& device, const Style& style) {
  const bool by_events = device.aligned_by == "events";
  const std::string title = by_events ? "peak in a part of the events" : "peak in " + device.aligned_by;
  std::string text =
      style.bold(fmt::format("{:>14} {:>14} {:>14}  {}", "growth", "A", "B", fmt::to_string(Printable{title}))) + "\n";
  for (const DifferencePart& part : device.parts) {
    const std::string when =
        by_events ? fmt::format("{:.0f} to {:.0f} %", 100 * part.begin, 100 * part.end) : numbers_text(part);
    text += fmt::format("{}  {}\n", figures_text(part.peak_bytes), when);
  }
  return text;
}

std::string moment_text(char side, const std::string& path, std::optional<int> device, const DifferenceMoment& moment) {
  if (!device) return fmt::format("{}  {}: lacks the device\n", side, Printable{path});
  const std::string reserved =
      moment.reserved_bytes == 0 ? "" : fmt::format(", reserved {}", format_bytes(moment.reserved_bytes));
  return fmt::format("{}  {}: device {}, after event {} of {}\n   requested {}, allocated {}{}\n", side,
                     Printable{path}, *device, with_commas(moment.event), with_commas(moment.events),
                     format_bytes(moment.requested_bytes), format_bytes(moment.allocated_bytes), reserved);
}

std::string device_text(const Difference& difference, const DeviceDifference& device, std::size_t top,
                        const Style& style) {
  std::string text = moment_text('A', difference.paths[0], device.device[0], device.moment[0]) +
                     moment_text('B', difference.paths[1], device.device[1], device.moment[1]);
  text += style.bold(fmt::format("   growth of the requested memory: {}", signed_bytes(device.growth()))) + "\n\n";
  for (const DifferenceList& list : device.lists) {
    if (is_telling(list)) text += list_text(list, top, style);
  }
  return text + time_text(device, style);
}

// ---- JSON

Json json_of(const DifferenceMoment& moment) {
  return {{"event", moment.event},
          {"events", moment.events},
          {"requested_bytes", moment.requested_bytes},
          {"allocated_bytes", moment.allocated_bytes},
          {"reserved_bytes", moment.reserved_bytes}};
}

Json json_of(const DifferenceRow& row) {
  return {{"name", row.name},
          {"was", row.was.empty() ? Json(nullptr) : Json(row.was)},
          {"change", row.change()},
          {"a_bytes", row.bytes.a},
          {"b_bytes", row.bytes.b},
          {"growth_bytes", row.bytes.growth()},
          {"a_allocations", row.count.a},
          {"b_allocations", row.count.b}};
}

Json json_of(const DifferenceList& list, std::size_t top) {
  const ShownRows shown = shown_rows(list, top);
  Json rows = Json::array();
  for (const DifferenceRow* row : shown.rows) rows.push_back(json_of(*row));
  return {{"rows", std::move(rows)},
          {"others",
           {{"rows", shown.other_count},
            {"a_bytes", shown.other_bytes.a},
            {"b_bytes", shown.other_bytes.b},
            {"growth_bytes", shown.other_bytes.growth()}}}};
}

// "category": "by_category".
Json json_of(const DeviceDifference& device, std::size_t top) {
  Json json = {{"device_a", or_null(device.device[0])}, {"device_b", or_null(device.device[1])}};
  json["a"] = json_of(device.moment[0]);
  json["b"] = json_of(device.moment[1]);
  json["growth_bytes"] = device.growth();
  for (const DifferenceList& list : device.lists) json["by_" + list.name] = json_of(list, top);
  json["aligned_by"] = device.aligned_by;
  json["parts"] = Json::array();
  for (const DifferencePart& part : device.parts) {
    json["parts"].push_back({{"begin", part.begin},
                             {"end", part.end},
                             {"a_peak_bytes", part.peak_bytes.a},
                             {"b_peak_bytes", part.peak_bytes.b},
                             {"growth_bytes", part.peak_bytes.growth()}});
  }
  return json;
}

}  // namespace

std::string to_text(const Difference& difference, std::size_t top, const Style& style) {
  std::string text;
  for (const DeviceDifference& device : difference.devices) {
    text += (text.empty() ? "" : "\n") + device_text(difference, device, top, style);
  }
  return text;
}

std::string to_json(const Difference& difference, std::size_t top) {
  std::int64_t growth = 0;
  Json devices = Json::array();
  for (const DeviceDifference& device : difference.devices) {
    growth += device.growth();
    devices.push_back(json_of(device, top));
  }
  return text_of(Json{{"a", difference.paths[0]},
                      {"b", difference.paths[1]},
                      {"at", difference.at},
                      {"growth_bytes", growth},
                      {"devices", std::move(devices)}});
}

}  // namespace cachalot::tools
