#include "tools/output/html_report.h"

#include <fmt/format.h>
#include <zlib.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <map>
#include <new>
#include <utility>
#include <vector>

#include "base/check.h"
#include "cachalot/events.h"
#include "cachalot/version.h"
#include "tools/analysis/recorded_trace.h"
#include "tools/analysis/sites.h"
#include "tools/analysis/timeline.h"
#include "tools/base/output_file.h"
#include "tools/base/text_layout.h"
#include "tools/history/history.h"
#include "tools/history/memory_ranges.h"
#include "tools/history/tables.h"
#include "tools/output/export_formats.h"
#include "tools/replay/replay.h"
#include "tools/replay/trace_reader.h"

namespace cachalot::tools {
namespace {

struct RankedValue {
  std::uint64_t value = 0;
  std::size_t count = 0;
  std::size_t rank = 0;
};

// The distinct values in their order, each with its rank by count.
std::vector<RankedValue> ranked(std::span<const std::uint64_t> values) {
  std::vector<std::uint64_t> sorted(values.begin(), values.end());
  std::ranges::sort(sorted);
  std::vector<RankedValue> distinct;
  for (const std::uint64_t value : sorted) {
    if (distinct.empty() || distinct.back().value != value) distinct.push_back({.value = value});
    ++distinct.back().count;
  }
  std::vector<RankedValue*> by_count;
  by_count.reserve(distinct.size());
  for (RankedValue& value : distinct) by_count.push_back(&value);
  std::ranges::stable_sort(by_count, [](const RankedValue* a, const RankedValue* b) { return a->count > b->count; });
  for (std::size_t i = 0; i < by_count.size(); ++i) by_count[i]->rank = i;
  return distinct;
}

}  // namespace

void ColumnWriter::begin(std::string_view name, std::string_view encoding, std::size_t rows) {
  directory_[std::string(name)] = {encoding, rows, bytes_.size()};
}

void ColumnWriter::put(std::uint64_t number) {
  for (; number >= 0x80; number >>= 7) bytes_ += static_cast<char>((number & 0x7f) | 0x80);
  bytes_ += static_cast<char>(number);
}

void ColumnWriter::add_plain(std::string_view name, std::span<const std::uint64_t> values) {
  begin(name, "plain", values.size());
  for (const std::uint64_t value : values) put(value);
}

void ColumnWriter::add_deltas(std::string_view name, std::span<const std::uint64_t> values) {
  begin(name, "deltas", values.size());
  std::uint64_t before = 0;
  for (const std::uint64_t value : values) {
    const std::uint64_t difference = value - before;
    const std::uint64_t sign = (difference >> 63) != 0 ? ~std::uint64_t{0} : 0;
    put((difference << 1) ^ sign);
    before = value;
  }
}

void ColumnWriter::add_ranked(std::string_view name, std::span<const std::uint64_t> values) {
  const std::vector<RankedValue> distinct = ranked(values);
  begin(name, "ranked", values.size());
  for (const std::uint64_t value : values)
    put(std::ranges::lower_bound(distinct, value, {}, &RankedValue::value)->rank);
  std::vector<std::uint64_t> by_rank(distinct.size());
  for (const RankedValue& value : distinct) by_rank[value.rank] = value.value;
  add_plain(std::string(name) + ".values", by_rank);
}

namespace {

using Numbers = std::vector<std::uint64_t>;

// Returns a number of each item.
template <typename Items, typename Field>
Numbers numbers_of(const Items& items, Field field) {
  Numbers numbers;
  for (const auto& item : items) numbers.push_back(std::invoke(field, item));
  return numbers;
}

// The call stacks of a run as a tree of calls, in the order in which a report decodes it.
// The history must outlive it. Not thread-safe.
class RunStacks {
 public:
  static constexpr std::size_t kDeepest = 512;  // calls further in are left out

  explicit RunStacks(const History& history) : history_(history), sites_(history) {}

  // Returns the number in the report of the stack in which the allocation was asked for.
  std::uint64_t add(StackId stack, DetailsId details) {
    const StackId telling = sites_.telling_stack(stack, details);
    const auto [known, is_new] = numbers_.try_emplace(telling, nodes_.size());
    if (is_new) nodes_.push_back(node_of(telling));
    return known->second;
  }

  // Adds the columns node, parent, frame, file, function, line and origin.
  void write(std::string_view prefix, ColumnWriter& columns, TextTable& texts) {
    const std::string begin(prefix);
    const auto add = [&](const char* name, auto field) { columns.add_plain(begin + name, numbers_of(frames_, field)); };
    const auto frame_of = [&](FrameId id) -> const StackFrame& { return history_.stacks.frame(id); };
    columns.add_plain(begin + "node", nodes_);
    columns.add_deltas(begin + "parent", parents_);
    columns.add_plain(begin + "frame", node_frames_);
    add("file", [&](FrameId id) { return texts.add(history_.texts[frame_of(id).file]); });
    add("function", [&](FrameId id) { return texts.add(history_.texts[frame_of(id).function]); });
    add("line", [&](FrameId id) { return frame_of(id).line; });
    add("origin", [&](FrameId id) {
      return static_cast<std::uint64_t>(sites_.is_of_simulator(id) ? Origin::machine : sites_.origin(id));
    });
  }

 private:
  // From the outermost call inwards.
  std::uint64_t node_of(StackId stack) {
    const std::span<const FrameId> frames = history_.stacks[stack];
    const std::size_t depth = std::min(frames.size(), kDeepest);
    std::uint64_t node = 0;
    for (std::size_t i = 0; i < depth; ++i) node = child_of(node, frames[frames.size() - 1 - i]);
    return node;
  }

  std::uint64_t child_of(std::uint64_t parent, FrameId frame) {
    const auto [known, is_new] = ids_.try_emplace({parent, frame}, parents_.size() + 1);
    if (!is_new) return known->second;
    const auto [number, is_new_frame] = frame_numbers_.try_emplace(frame, frames_.size());
    if (is_new_frame) frames_.push_back(frame);
    parents_.push_back(parent);
    node_frames_.push_back(number->second);
    return known->second;
  }

  const History& history_;
  Sites sites_;
  std::map<StackId, std::uint64_t> numbers_;
  std::vector<std::uint64_t> nodes_;  // by the report's number
  std::map<std::pair<std::uint64_t, FrameId>, std::uint64_t> ids_;
  std::map<FrameId, std::uint64_t> frame_numbers_;
  std::vector<FrameId> frames_;
  std::vector<std::uint64_t> parents_;
  std::vector<std::uint64_t> node_frames_;
};

// The places of a history's allocations under an allocator, and the memory that it held for them.
struct Layout {
  std::string name;                        // "recorded"
  std::vector<std::uint64_t> addresses;    // by allocation; 0 where it has none: of 0 bytes
  std::vector<std::uint64_t> block_bytes;  // by allocation
  std::vector<MemoryRange> ranges;
  // Bytes of the device that are held after an event, where they change. The page heap may hold memory that is mapped nowhere.
  struct Held {
    std::uint32_t event = Allocation::kBefore;
    std::uint64_t bytes = 0;
  };
  std::vector<Held> held;  // empty: the ranges are all that is held
};

// The device has more memory than any real one, and than the requests.
ReplayOptions with_config(const std::string& config, const Trace& trace) {
  constexpr std::size_t kMost = std::size_t{1} << 50;
  ReplayOptions options;
  options.config = config;
  options.device_bytes = std::max(options.device_bytes, 4 * std::min(peak_live_bytes(trace), kMost / 4));
  return options;
}

// Follows an allocator that plays the allocations of a history.
class LayoutRecorder {
 public:
  LayoutRecorder(const Trace& trace, std::span<const Allocation> allocations, const std::string& config)
      : trace_(trace), allocations_(allocations), by_slot_(trace.slots), world_(trace, with_config(config, trace)) {
    layout_.addresses.resize(allocations.size());
    layout_.block_bytes.resize(allocations.size());
  }

  Layout record() {
    world_.allocator().add_change_tracker([this](const Change& change) { follow(change); });
    for (std::size_t i = 0; i < trace_.events.size(); ++i) {
      play(trace_.events[i], i);
      look_at(world_.allocator().memory_reserved());
    }
    layout_.ranges = ranges_.take();
    is_recording_ = false;  // the end of the world is not in the history
    return std::move(layout_);
  }

 private:
  // The trace has the allocations in their order.
  void play(const TraceEvent& event, std::size_t number) {
    if (event.empties_cache()) {  // with the event before
      world_.play_with_work(event, number);
      return;
    }
    if (event.is_free()) {
      event_ = allocations_[by_slot_[event.slot]].end;
      world_.play_with_work(event, number);
      return;
    }
    allocation_ = next_++;
    by_slot_[event.slot] = allocation_;
    event_ = allocations_[allocation_].begin;
    world_.play_with_work(event, number);
  }

  void look_at(std::uint64_t held) {
    if (!layout_.held.empty() && layout_.held.back().bytes == held) return;
    if (layout_.held.empty() || layout_.held.back().event != event_) layout_.held.push_back({.event = event_});
    layout_.held.back().bytes = held;
  }

  void follow(const Change& change) {
    if (!is_recording_) return;
    if (change.action == Change::Action::alloc) {
      layout_.addresses[allocation_] = change.address;
      layout_.block_bytes[allocation_] = change.block_bytes;
    }
    if (change.action == Change::Action::segment_alloc || change.action == Change::Action::segment_map) {
      ranges_.open({.address = change.address, .bytes = change.bytes, .begin = event_}, event_);
    }
    if (change.action == Change::Action::segment_free || change.action == Change::Action::segment_unmap) {
      ranges_.close(change.address, change.bytes, event_);
    }
  }

  const Trace& trace_;
  std::span<const Allocation> allocations_;
  std::vector<std::size_t> by_slot_;  // the allocation that a slot holds
  std::size_t next_ = 0;              // allocation
  std::size_t allocation_ = 0;        // being made
  std::uint32_t event_ = Allocation::kBefore;
  bool is_recording_ = true;
  MemoryRanges ranges_;
  Layout layout_;
  ReplayWorld world_;
};

// Returns what the file says.
Layout recorded_layout(const Timeline& timeline) {
  Layout layout;
  layout.name = "recorded";
  layout.addresses = numbers_of(timeline.allocations(), &Allocation::address);
  layout.block_bytes = timeline.block_bytes();
  layout.ranges = timeline.segments();
  return layout;
}

// Plays the history's trace (trace_of) on an allocator of `config`, options.h, with as much memory as it wants. The
// device lags, as in `cachalot compare`. A change tracker follows the allocator, which takes other paths then: on the page heap
// what it holds may differ by a few pages from a replay that nothing follows. Throws InvalidArgument for `config`.
Layout replayed_layout(const Trace& trace, std::span<const Allocation> allocations, const std::string& name,
                       const std::string& config) {
  Layout layout = LayoutRecorder(trace, allocations, config).record();
  layout.name = name;
  return layout;
}

// ---- one run

constexpr std::size_t kMostTimes = std::size_t{1} << 20;
constexpr std::size_t kMostRestPoints = std::size_t{1} << 16;

// Begins and ends as a report has them: 0 is "before" or "never".
std::uint64_t html_event(std::uint32_t event) { return event == Allocation::kBefore ? 0 : std::uint64_t{event} + 1; }

// Collects what a report has of one run.
class RunData {
 public:
  RunData(const HtmlRun& run, const CategoryRules& rules, std::string prefix, ColumnWriter& columns, TextTable& texts)
      : timeline_(*run.timeline),
        history_(timeline_.history()),
        device_(timeline_.device()),
        allocations_(timeline_.allocations()),
        name_(run.name),
        is_host_(run.is_host),
        rules_(rules),
        prefix_(std::move(prefix)),
        columns_(columns),
        texts_(texts),
        is_shown_(allocations_.size()) {
    for (const std::size_t i : largest_of(allocations_, kMostHtmlAllocations)) is_shown_[i] = true;
  }

  Json make() {
    add_times();
    add_allocations();
    add_rest();
    Json layouts = Json::array();
    for (const Layout& layout : layouts_of()) {
      add_layout(layout, fmt::format("{}{}.", prefix_, layouts.size()));
      layouts.push_back(layout.name);
    }
    Json result = description();
    result["layouts"] = std::move(layouts);
    return result;
  }

 private:
  // Adds the times at regular numbers of events: a report interpolates.
  void add_times() {
    time_step_ = std::max<std::size_t>(1, (device_.events.size() + kMostTimes - 1) / kMostTimes);
    Numbers times;
    for (std::size_t i = 0; i < device_.events.size(); i += time_step_) {
      times.push_back(static_cast<std::uint64_t>(device_.events[i].time_us));
    }
    if (!device_.events.empty()) times.push_back(static_cast<std::uint64_t>(device_.events.back().time_us));
    columns_.add_deltas(prefix_ + "times", times);
  }

  template <typename Field>
  Numbers shown(Field field) const {
    Numbers values;
    for (std::size_t i = 0; i < allocations_.size(); ++i) {
      if (is_shown_[i]) values.push_back(field(i));
    }
    return values;
  }

  void add_allocations() {
    RunStacks stacks(history_);
    const std::vector<Category> categories = Categorizer(history_, rules_).categories_of(timeline_);
    columns_.add_deltas(prefix_ + "begin", shown([&](std::size_t i) { return html_event(allocations_[i].begin); }));
    columns_.add_plain(prefix_ + "length", shown([&](std::size_t i) -> std::uint64_t {
                         const Allocation& allocation = allocations_[i];
                         if (allocation.end == Allocation::kNever) return 0;
                         return html_event(allocation.end) - html_event(allocation.begin);
                       }));
    columns_.add_ranked(prefix_ + "bytes", shown([&](std::size_t i) { return allocations_[i].bytes; }));
    columns_.add_ranked(prefix_ + "stack", shown([&](std::size_t i) {
                          return stacks.add(allocations_[i].stack, allocations_[i].details);
                        }));
    columns_.add_plain(prefix_ + "category",
                       shown([&](std::size_t i) { return static_cast<std::uint64_t>(categories[i]); }));
    columns_.add_plain(prefix_ + "stream",
                       shown([&](std::size_t i) -> std::uint64_t { return allocations_[i].stream; }));
    columns_.add_plain(prefix_ + "pool", shown([&](std::size_t i) -> std::uint64_t { return allocations_[i].pool; }));
    stacks.write(prefix_, columns_, texts_);
  }

  // Adds the bytes of omitted allocations: the most of each of as many stretches of the history.
  void add_rest() {
    Numbers events;
    Numbers bytes;
    if (allocations_.size() > kMostHtmlAllocations) {
      std::vector<std::int64_t> changes(device_.events.size() + 1);
      for (std::size_t i = 0; i < allocations_.size(); ++i) {
        if (is_shown_[i]) continue;
        const auto size = static_cast<std::int64_t>(allocations_[i].bytes);
        changes[html_event(allocations_[i].begin)] += size;
        if (allocations_[i].end != Allocation::kNever) changes[html_event(allocations_[i].end)] -= size;
      }
      const std::size_t step = (changes.size() + kMostRestPoints - 1) / kMostRestPoints;
      std::int64_t now = 0;
      for (std::size_t i = 0; i < changes.size(); ++i) {
        now += changes[i];
        if (i % step == 0) {
          events.push_back(i);
          bytes.push_back(0);
        }
        bytes.back() = std::max(bytes.back(), static_cast<std::uint64_t>(now));
      }
    }
    columns_.add_deltas(prefix_ + "rest_event", events);
    columns_.add_deltas(prefix_ + "rest_bytes", bytes);
  }

  std::vector<Layout> layouts_of() const {
    if (allocations_.empty() || is_host_) return {recorded_layout(timeline_)};  // policies are of GPUs
    const Trace trace = trace_of(timeline_, {.plays_failures = false});
    std::vector<Layout> layouts;
    layouts.push_back(recorded_layout(timeline_));
    // A trace without segments: PyTorch's policy stands for the layout that was not recorded.
    if (layouts.back().ranges.empty()) layouts.back() = replayed_layout(trace, allocations_, "PyTorch's policy", "");
    layouts.push_back(replayed_layout(trace, allocations_, "page heap", "heap:pages"));
    return layouts;
  }

  void add_layout(const Layout& layout, const std::string& prefix) {
    columns_.add_ranked(prefix + "address", shown([&](std::size_t i) { return layout.addresses[i]; }));
    columns_.add_ranked(prefix + "block", shown([&](std::size_t i) { return layout.block_bytes[i]; }));
    const auto begin_of = [](const MemoryRange& range) { return html_event(range.begin); };
    const auto end_of = [](const MemoryRange& range) { return html_event(range.end); };
    const auto event_of = [](const Layout::Held& change) { return html_event(change.event); };
    columns_.add_deltas(prefix + "range_begin", numbers_of(layout.ranges, begin_of));
    columns_.add_plain(prefix + "range_end", numbers_of(layout.ranges, end_of));
    columns_.add_deltas(prefix + "range_address", numbers_of(layout.ranges, &MemoryRange::address));
    columns_.add_ranked(prefix + "range_bytes", numbers_of(layout.ranges, &MemoryRange::bytes));
    columns_.add_deltas(prefix + "held_event", numbers_of(layout.held, event_of));
    columns_.add_deltas(prefix + "held_bytes", numbers_of(layout.held, &Layout::Held::bytes));
  }

  Json description() const {
    Json result = {{"name", name_},
                   {"prefix", prefix_},
                   {"device", device_.device},
                   {"events", device_.events.size()},
                   {"time_step", time_step_},
                   {"has_times", history_.format != HistoryFormat::cachalot_trace},
                   {"left_out", std::ranges::count(is_shown_, false)},
                   {"gpu", ""},
                   {"total_bytes", nullptr},
                   {"ooms", Json::array()},
                   {"stages", Json::array()},
                   {"categories", rules_.names},
                   {"streams", Json::array()},
                   {"pools", Json::array()}};
    for (const DeviceFacts& facts : history_.facts) {
      if (is_host_ || facts.device != device_.device) continue;
      result["gpu"] = facts.name;
      if (facts.total_bytes) result["total_bytes"] = *facts.total_bytes;
    }
    for (std::size_t i = 0; i < device_.events.size(); ++i) {
      const HistoryEvent& event = device_.events[i];
      if (event.action == HistoryEvent::Action::oom) result["ooms"].push_back({i + 1, event.bytes});
    }
    for (const StageMark& mark : history_.stages) {
      if (mark.device == device_.device) {
        result["stages"].push_back({std::string(history_.texts[mark.name]), mark.time_us, mark.begins});
      }
    }
    for (std::size_t i = 0; i < history_.streams.size(); ++i) {
      result["streams"].push_back(fmt::format("{:#x}", history_.streams[i]));
    }
    for (std::size_t i = 0; i < history_.pools.size(); ++i) {
      result["pools"].push_back(fmt::format("({}, {})", history_.pools[i].first, history_.pools[i].second));
    }
    return result;
  }

  const Timeline& timeline_;
  const History& history_;
  const DeviceHistory& device_;
  const std::vector<Allocation>& allocations_;
  std::string name_;
  bool is_host_;
  const CategoryRules& rules_;
  std::string prefix_;
  ColumnWriter& columns_;
  TextTable& texts_;
  std::vector<bool> is_shown_;
  std::size_t time_step_ = 1;
};

// Adds the section's verdicts: the first is the headline, the others follow with the titles of their sections.
void add_verdicts(HtmlVerdict& verdict, const Section& section) {
  for (const ReportPart& part : section.parts) {
    if (const auto* const inner = std::get_if<Section>(&part.content)) add_verdicts(verdict, *inner);
    const auto* const figure = std::get_if<Figure>(&part.content);
    if (figure == nullptr || !figure->is_verdict) continue;
    const std::string text = fmt::format("{}: {}", figure->label, figure->cell.text);
    if (verdict.headline.empty()) {
      verdict.headline = text;
      verdict.is_bad = figure->cell.mood == Mood::bad;
    } else {
      verdict.paragraphs.push_back(fmt::format("{}: {}", section.title, text));
    }
  }
}

Json json_of(const HtmlVerdict& verdict) {
  Json remedies = Json::array();
  for (const HtmlRemedy& remedy : verdict.remedies) {
    remedies.push_back({{"title", remedy.title}, {"evidence", remedy.evidence}, {"setting", remedy.setting}});
  }
  return {{"headline", verdict.headline},
          {"bad", verdict.is_bad},
          {"paragraphs", verdict.paragraphs},
          {"remedies", std::move(remedies)}};
}

}  // namespace

std::string html_data(const HtmlReport& report, const CategoryRules& rules) {
  ColumnWriter columns;
  TextTable texts;
  Json runs = Json::array();
  for (std::size_t i = 0; i < report.runs.size(); ++i) {
    runs.push_back(RunData(report.runs[i], rules, fmt::format("{}/", i), columns, texts).make());
  }
  Json tables = html_tables(report.answer, report.shows_figures);
  HtmlVerdict verdict = report.verdict;
  if (verdict.headline.empty()) add_verdicts(verdict, report.answer);
  Json names = Json::array();
  for (std::size_t i = 0; i < texts.size(); ++i) names.push_back(std::string(texts[static_cast<TextId>(i)]));
  const std::string json = text_of({{"title", report.title},
                                    {"command", report.command},
                                    {"version", CACHALOT_VERSION_STRING},
                                    {"verdict", json_of(verdict)},
                                    {"runs", std::move(runs)},
                                    {"compares", report.compares},
                                    {"tables", std::move(tables)},
                                    {"texts", std::move(names)},
                                    {"columns", columns.directory()}});
  return fmt::format("{:08x}{}{}", json.size(), json, columns.bytes());
}

void add_runs(HtmlReport& report, const Timelines& timelines) {
  const std::string file = std::filesystem::path(timelines.history().path).filename().string();
  for (const Timeline& timeline : timelines.devices()) {
    const bool is_only = timelines.devices().size() == 1;
    report.runs.push_back(
        {.timeline = &timeline, .name = is_only ? file : fmt::format("{}, device {}", file, timeline.device().device)});
  }
  for (const Timeline& timeline : timelines.host()) {
    report.runs.push_back(
        {.timeline = &timeline, .name = fmt::format("{}, pinned host memory", file), .is_host = true});
  }
}

namespace {

std::string deflated(std::string_view bytes) {
  uLongf size = compressBound(bytes.size());
  std::string result(size, '\0');
  const int outcome = compress2(reinterpret_cast<Bytef*>(result.data()), &size,
                                reinterpret_cast<const Bytef*>(bytes.data()), bytes.size(), /*level=*/6);
  if (outcome != Z_OK) throw std::bad_alloc();  // the buffer is large enough
  result.resize(size);
  return result;
}

std::string base64(std::string_view bytes) {
  static constexpr std::string_view kDigits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string text;
  text.reserve((bytes.size() + 2) / 3 * 4);
  for (std::size_t i = 0; i < bytes.size(); i += 3) {
    const std::size_t given = std::min<std::size_t>(3, bytes.size() - i);
    std::uint32_t group = 0;
    for (std::size_t k = 0; k < 3; ++k) {
      group = (group << 8) | (k < given ? static_cast<unsigned char>(bytes[i + k]) : 0U);
    }
    for (std::size_t k = 0; k < 4; ++k) text += k <= given ? kDigits[(group >> (18 - 6 * k)) & 63] : '=';
  }
  return text;
}

std::string bytes_of_hex(std::string_view hex) {
  std::string bytes;
  for (std::size_t i = 0; i + 1 < hex.size(); i += 2) {
    bytes += static_cast<char>(std::strtoul(std::string(hex.substr(i, 2)).c_str(), nullptr, 16));
  }
  return bytes;
}

void replace(std::string& text, std::string_view marker, std::string_view by) {
  const std::size_t at = text.find(marker);
  CACHALOT_REQUIRE(at != std::string::npos, "report.html does not have {}", marker);
  text.replace(at, marker.size(), by);
}

}  // namespace

std::string html_of(const HtmlReport& report, const CategoryRules& rules) {
  std::string html;
  std::array<std::string, 2> elements;  // styles, scripts
  std::array<std::string, 2> hashes;    // that allow them
  for (const EmbeddedFile& file : embedded_files()) {
    if (file.name.ends_with(".html")) {
      html = file.text;
      continue;
    }
    if (file.name.ends_with(".svg")) {
      replace(html, "<!-- whale -->", file.text);
      continue;
    }
    const std::size_t kind = file.name.ends_with(".css") ? 0 : 1;
    elements[kind] += fmt::format("<{0}>{1}</{0}>\n", kind == 0 ? "style" : "script", file.text);
    hashes[kind] += fmt::format(" 'sha256-{}'", base64(bytes_of_hex(file.sha256_hex)));
  }
  replace(html, "{style hashes}", hashes[0]);
  replace(html, "{script hashes}", hashes[1]);
  replace(html, "<!-- styles -->\n", elements[0]);
  replace(html, "<!-- scripts -->\n", elements[1]);
  replace(html, "{data}", base64(deflated(html_data(report, rules))));  // last: it is the largest
  return html;
}

void write_html_report(const std::string& path, const HtmlReport& report, const CategoryRules& rules) {
  write_output(path, "--html", html_of(report, rules));
}

}  // namespace cachalot::tools
