#include "tools/analysis/difference.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <functional>
#include <map>
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

// The events at which an outermost stage begins, by its name. `run` is nullptr where the run lacks the device.
std::map<std::string, std::vector<std::size_t>> stage_begins(const Timeline* run) {
  std::map<std::string, std::vector<std::size_t>> begins;
  if (run == nullptr) return begins;
  const Stages stages(run->history(), run->device(), Stages::Of::user);
  TextId open = 0;
  for (std::size_t event = 0; event < run->events().size(); ++event) {
    const std::vector<TextId>& now = stages.open(stages.at(event));
    const TextId outermost = now.empty() ? 0 : now.front();
    if (outermost != open && outermost != 0) begins[without_numbers(run->history().texts[outermost])].push_back(event);
    open = outermost;
  }
  return begins;
}

struct Alignment {
  std::string by = "events";
  std::array<std::vector<std::size_t>, 2> begins;  // of the parts, by event
  std::vector<double> marks;                       // the begins of the parts, and the end of the last
};

std::size_t events_of(const Timeline* run) { return run == nullptr ? 0 : run->events().size(); }

using Begins = std::vector<std::size_t>;

// The stage that both have most often, if they have one twice.
Alignment by_stage(const Timeline* a, const Timeline* b) {
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

Alignment by_share(const Timeline* a, const Timeline* b, std::size_t parts) {
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
std::vector<std::uint64_t> peaks_of(const Timeline* run, const std::vector<std::size_t>& begins) {
  std::vector<std::uint64_t> peaks(begins.size());
  if (run == nullptr) return peaks;
  HeldCursor cursor(*run);
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
void compare_in_time(const Timeline* a, const Timeline* b, std::size_t parts, DeviceDifference& difference) {
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

// The memory of one device of one run at the compared moment. `of_device` is nullptr where the run lacks the device.
struct Side {
  Side(const History& of_history, const Timeline* of_device, const CategoryRules& rules,
       const DifferenceOptions& options)
      : history(of_history), timeline(of_device), sites(of_history), categorizer(of_history, rules) {
    if (timeline == nullptr) return;
    categories = categorizer.categories_of(*timeline);
    stages.emplace(history, timeline->device(), Stages::Of::user);
    peak = timeline->asked_moment(options.at);
  }

  DifferenceMoment moment() const {
    return {.event = peak.event,
            .events = events_of(timeline),
            .requested_bytes = peak.held.requested,
            .allocated_bytes = peak.held.allocated,
            .reserved_bytes = peak.held.reserved};
  }

  // The frames by which rows are named.
  std::vector<FrameId> naming_frames(Frames frames) {
    std::set<FrameId> found;
    for (const std::uint32_t live : peak.live) {
      const StackId stack = stack_of(allocation(live));
      if (stack == 0) continue;
      found.insert(sites.place_of(stack, frames));
    }
    return {found.begin(), found.end()};
  }

  StackId stack_of(const Allocation& allocation) { return sites.telling_stack(allocation.stack, allocation.details); }

  const Allocation& allocation(std::uint32_t number) const { return timeline->allocations()[number]; }

  const History& history;
  const Timeline* timeline;
  Sites sites;
  Categorizer categorizer;
  std::vector<Category> categories;
  std::optional<Stages> stages;
  Moment peak;
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
  static std::string module_of(Side& side, const Allocation& allocation) {
    const std::string& module = side.sites.module_of(side.stack_of(allocation));
    return module.empty() ? "(outside of modules)" : module;
  }
  static std::string pool_of(Side& side, const Allocation& allocation) {
    const PoolId pool = side.history.pools[allocation.pool];
    return pool.is_default() ? "default" : fmt::format("({}, {})", pool.first, pool.second);
  }
  static std::string stage_of(Side& side, const Allocation& allocation) {
    if (allocation.begin == Allocation::kBefore && side.stages->size() > 1) return "(before the history)";
    if (allocation.begin == Allocation::kBefore) return "(outside of stages)";
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
      const Allocation& allocation = side->allocation(live);
      const std::string was = is_b ? "" : namer.own_line_of(*side, allocation);
      makers[0].add(std::string(side->categorizer.name_of(side->categories[live])), is_b, allocation.bytes);
      makers[1].add(namer.line_of(*side, allocation), is_b, allocation.bytes, was);
      makers[2].add(Namer::module_of(*side, allocation), is_b, allocation.bytes);
      makers[3].add(Namer::pool_of(*side, allocation), is_b, allocation.bytes);
      makers[4].add(Namer::stage_of(*side, allocation), is_b, allocation.bytes);
    }
  }
  std::vector<DifferenceList> lists;
  for (std::size_t i = 0; i < makers.size(); ++i) lists.push_back({kLists[i], makers[i].rows()});
  return lists;
}

// ---- devices

using DevicePair = std::pair<const Timeline*, const Timeline*>;

std::vector<DevicePair> device_pairs(const Timelines& a, const Timelines& b) {
  for (const Timelines* run : {&a, &b}) {
    CACHALOT_REQUIRE(!run->devices().empty(), "{}: the file has no memory of a device", run->history().path);
  }
  // A rank's file has the device of that rank.
  if (a.devices().size() == 1 && b.devices().size() == 1) return {{&a.devices().front(), &b.devices().front()}};
  std::map<int, DevicePair> pairs;
  for (const Timeline& timeline : a.devices()) pairs[timeline.device().device].first = &timeline;
  for (const Timeline& timeline : b.devices()) pairs[timeline.device().device].second = &timeline;
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

Difference difference_of(const Timelines& a, const Timelines& b, const CategoryRules& rules,
                         const DifferenceOptions& options) {
  Difference difference{.paths = {a.history().path, b.history().path}, .at = options.at, .devices = {}};
  for (const auto& [device_a, device_b] : device_pairs(a, b)) {
    Side side_a(a.history(), device_a, rules, options);
    Side side_b(b.history(), device_b, rules, options);
    DeviceDifference device;
    if (device_a != nullptr) device.device[0] = device_a->device().device;
    if (device_b != nullptr) device.device[1] = device_b->device().device;
    device.moment = {side_a.moment(), side_b.moment()};
    device.lists = lists_of(side_a, side_b, options.frames);
    compare_in_time(device_a, device_b, options.parts, device);
    difference.devices.push_back(std::move(device));
  }
  return difference;
}

namespace {

// The rows that changed most, in their order, and the sum of the others.
struct ShownRows {
  std::vector<std::size_t> rows;
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
  shown.rows = std::move(by_change);
  return shown;
}

constexpr std::size_t kWidth = 14;  // of a column

std::vector<Column> columns_of(std::string a_key, std::string b_key) {
  return {{.key = "growth_bytes", .title = "growth", .unit = Unit::growth, .width = kWidth},
          {.key = std::move(a_key), .title = "A", .unit = Unit::bytes, .width = kWidth, .page_title = "first"},
          {.key = std::move(b_key), .title = "B", .unit = Unit::bytes, .width = kWidth, .page_title = "second"}};
}

std::string name_text(const DifferenceRow& row) {
  std::string note;
  if (row.count.a == 0) note = "  (new)";
  if (row.count.b == 0) note = "  (gone)";
  if (!row.was.empty()) note = fmt::format("  (A: {})", Printable{row.was});
  return printable(row.name) + note;
}

// A list with one row says nothing that the whole does not: it is for programs alone.
Section list_section(const DifferenceList& list, std::size_t top) {
  const ShownRows shown = shown_rows(list, top);
  Table table{.key = "rows",
              .title = fmt::format("What grew, by {}", list.name),
              .columns = columns_of("a_bytes", "b_bytes"),
              .indent = 0,
              .shown = shown.rows};
  table.columns.push_back({.key = "change", .title = "change", .views = kNotInText});
  table.columns.push_back({.key = "was", .title = "in the first", .views = kNotInText});
  table.columns.push_back(hidden_column("a_allocations"));
  table.columns.push_back(hidden_column("b_allocations"));
  table.columns.push_back({.key = "name", .title = list.name});
  for (const DifferenceRow& row : list.rows)
    table.rows.push_back({row.bytes.growth(),
                          row.bytes.a,
                          row.bytes.b,
                          row.change(),
                          row.was.empty() ? Json(nullptr) : Json(row.was),
                          row.count.a,
                          row.count.b,
                          {row.name, name_text(row)}});
  table.views.text = list.rows.size() > 1 || list.name == "category";
  Section section = object_of("by_" + list.name);
  const bool is_shown = table.views.text && !table.rows.empty();
  if (shown.other_count > 0)
    table.rest = fmt::format("{:>14} {:>14} {:>14}  ({} more)", text_in(Unit::growth, shown.other_bytes.growth()),
                             format_bytes(shown.other_bytes.a), format_bytes(shown.other_bytes.b),
                             with_commas(shown.other_count));
  section.add(std::move(table));
  if (is_shown) section.add_gap();
  Section others = object_of("others");
  others.add_value("rows", shown.other_count).add_value("a_bytes", shown.other_bytes.a);
  others.add_value("b_bytes", shown.other_bytes.b).add_value("growth_bytes", shown.other_bytes.growth());
  return section.add(std::move(others));
}

// Stages count from 1 for people.
std::string when_text(const DifferencePart& part, bool by_events) {
  if (by_events) return fmt::format("{:.0f} to {:.0f} %", 100 * part.begin, 100 * part.end);
  if (part.end - part.begin < 2) return fmt::format("number {:.0f}", part.begin + 1);
  return fmt::format("numbers {:.0f} to {:.0f}", part.begin + 1, part.end);
}

Table parts_table(const DeviceDifference& device) {
  const bool by_events = device.aligned_by == "events";
  Table table{.key = "parts",
              .columns = columns_of("a_peak_bytes", "b_peak_bytes"),
              .indent = 0,
              .views = kNotOnPage};  // the page has a chart of it
  table.columns.push_back(hidden_column("begin"));
  table.columns.push_back(hidden_column("end"));
  table.columns.push_back(
      {.title = by_events ? "peak in a part of the events" : "peak in " + printable(device.aligned_by)});
  for (const DifferencePart& part : device.parts)
    table.rows.push_back({part.peak_bytes.growth(),
                          part.peak_bytes.a,
                          part.peak_bytes.b,
                          part.begin,
                          part.end,
                          {nullptr, when_text(part, by_events)}});
  return table;
}

std::string moment_text(char side, const std::string& path, std::optional<int> device, const DifferenceMoment& moment) {
  if (!device) return fmt::format("{}  {}: lacks the device", side, Printable{path});
  const std::string reserved =
      moment.reserved_bytes == 0 ? "" : fmt::format(", reserved {}", format_bytes(moment.reserved_bytes));
  return fmt::format("{}  {}: device {}, after event {} of {}\n   requested {}, allocated {}{}", side, Printable{path},
                     *device, with_commas(moment.event), with_commas(moment.events),
                     format_bytes(moment.requested_bytes), format_bytes(moment.allocated_bytes), reserved);
}

Section moment_section(const char* key, const DifferenceMoment& moment) {
  Section section = object_of(key);
  section.add_value("event", moment.event).add_value("events", moment.events);
  section.add_value("requested_bytes", moment.requested_bytes).add_value("allocated_bytes", moment.allocated_bytes);
  return section.add_value("reserved_bytes", moment.reserved_bytes);
}

Section device_section(const Difference& difference, const DeviceDifference& device, std::size_t top) {
  Section section;
  for (const std::size_t i : {std::size_t{0}, std::size_t{1}})
    section.add(Note{.text = moment_text(i == 0 ? 'A' : 'B', difference.paths[i], device.device[i], device.moment[i]),
                     .is_wrapped = false});
  section.add(
      Note{.text = fmt::format("   growth of the requested memory: {}\n", text_in(Unit::growth, device.growth())),
           .is_bold = true,
           .is_wrapped = false});
  section.add_value("device_a", or_null(device.device[0])).add_value("device_b", or_null(device.device[1]));
  section.add(moment_section("a", device.moment[0])).add(moment_section("b", device.moment[1]));
  section.add_value("growth_bytes", device.growth());
  for (const DifferenceList& list : device.lists) section.add(list_section(list, top));
  return section.add_value("aligned_by", device.aligned_by).add(parts_table(device));
}

}  // namespace

Section report_of(const Difference& difference, std::size_t top) {
  Section root;
  std::int64_t growth = 0;
  Section devices = list_of("devices");
  for (const DeviceDifference& device : difference.devices) {
    growth += device.growth();
    if (!devices.parts.empty()) devices.add_gap();
    devices.add(device_section(difference, device, top));
  }
  root.add_value("a", difference.paths[0]).add_value("b", difference.paths[1]).add_value("at", difference.at);
  return root.add_value("growth_bytes", growth).add(std::move(devices));
}

}  // namespace cachalot::tools
