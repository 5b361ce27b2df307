#include "tools/simulation/fit.h"

#include <algorithm>
#include <cmath>
#include <iterator>

#include "base/check.h"

namespace cachalot::tools {
namespace {

// Gives slots to the events anew.
class Rewriter {
 public:
  explicit Rewriter(const Trace& trace) : trace_(trace), live_(trace.slots) { events_.reserve(trace.events.size()); }

  Trace rewrite() {
    for (const TraceEvent& event : trace_.events) {
      if (event.empties_cache()) {
        write_frees();
        events_.push_back(event);
      } else if (event.is_free()) {
        frees_.push_back(live_[event.slot]);
      } else {
        write_frees();
        const TraceEvent made = maker_.allocate(event.bytes, event.stream);
        live_[event.slot] = {allocations_++, made.slot};
        events_.push_back(made);
      }
    }
    write_frees();
    Trace result = trace_;
    result.events = std::move(events_);
    result.streams = maker_.streams();
    result.slots = maker_.slots();
    return result;
  }

 private:
  struct Allocation {
    std::size_t number = 0;
    std::uint32_t slot = 0;  // the new one
  };

  void write_frees() {
    std::ranges::sort(frees_, {}, &Allocation::number);
    for (const Allocation& allocation : frees_) events_.push_back(maker_.free(allocation.slot));
    frees_.clear();
  }

  const Trace& trace_;
  TraceMaker maker_;
  std::vector<TraceEvent> events_;
  std::vector<Allocation> live_;   // by the old slot
  std::vector<Allocation> frees_;  // of the row of frees that is read
  std::size_t allocations_ = 0;
};

bool are_alike(const TraceEvent& one, const TraceEvent& other) {
  return one.slot == other.slot && one.stream == other.stream;
}

constexpr std::uint64_t kMargin = 2;  // deviations

}  // namespace

Trace with_ordered_frees(const Trace& trace) { return trace.is_held() ? Rewriter(trace).rewrite() : trace; }

bool have_one_shape(const Trace& one, const Trace& other) {
  return one.is_held() && other.is_held() && std::ranges::equal(one.events, other.events, are_alike);
}

Trace on_line(const TraceAt& low, const TraceAt& high, std::int64_t value) {
  const double part = static_cast<double>(value - low.value) / static_cast<double>(high.value - low.value);
  Trace trace = low.trace;
  for (std::size_t i = 0; i < trace.events.size(); ++i) {
    const auto from = static_cast<double>(low.trace.events[i].bytes);
    const auto to = static_cast<double>(high.trace.events[i].bytes);
    trace.events[i].bytes = static_cast<std::uint64_t>(std::llround(std::max(0.0, from + (to - from) * part)));
  }
  return trace;
}

void note_deviations(Deviations& deviations, const Trace& computed, const Trace& real) {
  for (std::size_t i = 0; i < deviations.size(); ++i) {
    const auto [least, most] = std::minmax(computed.events[i].bytes, real.events[i].bytes);
    deviations[i] = std::max(deviations[i], most - least);
  }
}

Trace raised(Trace trace, const Deviations& deviations) {
  for (std::size_t i = 0; i < deviations.size(); ++i) trace.events[i].bytes += kMargin * deviations[i];
  return trace;
}

Trace lowered(Trace trace, const Deviations& deviations) {
  for (std::size_t i = 0; i < deviations.size(); ++i) {
    std::uint64_t& bytes = trace.events[i].bytes;
    bytes -= std::min(bytes, kMargin * deviations[i]);
  }
  return trace;
}

namespace {

constexpr std::size_t kMostHeldEvents = std::size_t{1} << 24;  // 256 MiB

bool is_near(std::size_t one, std::size_t other) {
  constexpr std::size_t kPart = 1000;
  return std::max(one, other) - std::min(one, other) <= std::max(one, other) / kPart;
}

}  // namespace

bool have_one_shape(const Recording& one, const Recording& other) {
  return !one.is_too_large && !other.is_too_large &&
         std::ranges::equal(one.parts, other.parts, [](const auto& a, const auto& b) {
           return a.other_bytes == b.other_bytes && have_one_shape(a.trace, b.trace);
         });
}

bool are_equal(const Recording& one, const Recording& other) {
  return have_one_shape(one, other) && std::ranges::equal(one.parts, other.parts, [](const auto& a, const auto& b) {
           return a.trace.events == b.trace.events;
         });
}

bool are_nearly_equal(const Recording& one, const Recording& other) {
  return have_one_shape(one, other) && std::ranges::equal(one.parts, other.parts, [](const auto& a, const auto& b) {
           return is_near(peak_live_bytes(a.trace), peak_live_bytes(b.trace));
         });
}

void note_deviations(std::vector<Deviations>& deviations, const Recording& computed, const Recording& real) {
  if (deviations.empty()) {
    for (const Recording::Part& part : real.parts) deviations.emplace_back(part.trace.event_count);
  }
  for (std::size_t i = 0; i < deviations.size(); ++i)
    note_deviations(deviations[i], computed.parts[i].trace, real.parts[i].trace);
}

Recording on_line(const Recording& one, std::int64_t at_one, const Recording& other, std::int64_t at_other,
                  std::int64_t value) {
  Recording recording = one;
  for (std::size_t i = 0; i < recording.parts.size(); ++i) {
    recording.parts[i].trace = on_line({.trace = one.parts[i].trace, .value = at_one},
                                       {.trace = other.parts[i].trace, .value = at_other}, value);
  }
  return recording;
}

void FitAnswers::add(const Recording& recording) {
  std::vector<PartFit>& parts = traces_.emplace_back();
  for (const Recording::Part& part : recording.parts) {
    parts.push_back({.need = MemoryNeed(part.trace), .other_bytes = part.other_bytes});
    held_events_ += part.trace.event_count;
  }
}

void FitAnswers::add(const Computed& computed) {
  Recording low = computed.recording;
  Recording high = computed.recording;
  for (std::size_t i = 0; i < low.parts.size(); ++i) {
    low.parts[i].trace = lowered(std::move(low.parts[i].trace), computed.deviations[i]);
    high.parts[i].trace = raised(std::move(high.parts[i].trace), computed.deviations[i]);
  }
  add(low);
  add(high);
}

std::optional<bool> FitAnswers::answer(const FitQuestion& question) {
  const bool first = all_fit(traces_.front(), question);
  const bool is_certain =
      std::all_of(traces_.begin() + 1, traces_.end(), [&](auto& parts) { return all_fit(parts, question) == first; });
  return is_certain ? std::optional(first) : std::nullopt;
}

bool FitAnswers::all_fit(std::vector<PartFit>& parts, const FitQuestion& question) {
  return std::ranges::all_of(parts, [&](PartFit& part) {
    return question.memory_bytes >= part.other_bytes &&
           part.need.fits({.heap = question.heap}, question.memory_bytes - part.other_bytes);
  });
}

FitSearch::FitSearch(std::vector<std::int64_t> values, const std::set<std::size_t>& memory_bytes)
    : values_(std::move(values)) {
  for (const std::size_t bytes : memory_bytes) {
    for (const Policy::Heap heap : kHeaps) {
      questions_.push_back({.heap = heap, .memory_bytes = bytes});
      known_[questions_.back()] = {.fits = std::nullopt, .does_not = values_.size()};
    }
  }
}

std::vector<std::size_t> FitSearch::wanted() {
  std::set<std::size_t> wanted;
  std::size_t first = values_.size();
  std::size_t last = 0;
  for (const FitQuestion& question : questions_) {
    const Bracket bracket = bracket_of(question);
    if (bracket.is_closed()) continue;
    first = std::min(first, bracket.fits.value_or(0));
    last = std::max(last, std::min(bracket.does_not, values_.size() - 1));
    if (bracket.undecided) {
      wanted.insert(*bracket.undecided);
    } else if (is_between_runs(bracket.first_open())) {
      for (const std::size_t index : checks_in(segment_around(bracket.first_open()))) wanted.insert(index);
    } else {
      wanted.insert(bracket.middle());
    }
  }
  // Open indexes must lie between two runs, unless there are so few that lines need more runs than trying does.
  constexpr std::size_t kFewValues = 4;
  std::set<std::size_t> ends;
  if (first < values_.size() && last - first > kFewValues) {
    if (recordings_.empty() || recordings_.begin()->first > first) ends.insert(first);
    if (recordings_.empty() || recordings_.rbegin()->first < last) ends.insert(last);
  }
  if (!ends.empty()) wanted = ends;
  return {wanted.begin(), wanted.end()};
}

// Adds a run, and forgets the results of lines that it changes.
void FitSearch::add(std::size_t index, Recording recording) {
  recordings_.insert_or_assign(index, std::move(recording));
  constexpr int kRunsOfALine = 3;
  const std::size_t first = run_beside(index, -kRunsOfALine).value_or(0);
  const std::size_t last = run_beside(index, kRunsOfALine).value_or(values_.size());
  for (auto at = answers_.lower_bound(first); at != answers_.end() && at->first <= last;) at = forget(at);
}

FitBounds FitSearch::bounds(const FitQuestion& question) { return bracket_of(question); }

void FitSearch::narrow(const FitQuestion& question, const FitBounds& bounds) {
  FitBounds& known = known_.at(question);
  known.fits = std::max(known.fits, bounds.fits);  // nullopt is the smallest
  known.does_not = std::min(known.does_not, bounds.does_not);
}

FitSearch::AnswersByIndex::iterator FitSearch::forget(AnswersByIndex::iterator at) {
  held_events_ -= at->second.held_events();
  return answers_.erase(at);
}

void FitSearch::close() {
  for (const FitQuestion& question : questions_) narrow(question, bounds(question));
  answers_.clear();
  held_events_ = 0;
}

std::optional<Computed> FitSearch::computed(std::size_t index) const {
  if (const auto found = recordings_.find(index); found != recordings_.end()) {
    if (found->second.is_too_large) return std::nullopt;
    Computed computed{.recording = found->second, .deviations = {}};
    note_deviations(computed.deviations, found->second, found->second);
    return computed;
  }
  if (!is_between_runs(index)) return std::nullopt;
  const Segment segment = segment_around(index);
  if (!have_one_shape(recordings_.at(segment.first), recordings_.at(segment.second))) return std::nullopt;
  std::optional<Line> line = line_inside(segment);
  if (!line) return std::nullopt;
  return Computed{.recording = on(*line, index), .deviations = std::move(line->deviations)};
}

FitSearch::Bracket FitSearch::bracket_of(const FitQuestion& question) {
  Bracket bracket{known_.at(question), std::nullopt};
  for (const auto& [index, recording] : recordings_) {
    if (index < bracket.first_open()) continue;
    if (index >= bracket.does_not) break;
    if (recording.is_too_large || !*answer(index, question)) {
      bracket.does_not = index;
      break;
    }
    bracket.fits = index;
  }
  const bool is_surrounded = !bracket.is_closed() && is_between_runs(bracket.first_open());
  if (is_surrounded && !lines_for(segment_around(bracket.first_open())).empty())
    bracket.undecided = bracket.bisect([&](std::size_t index) { return answer(index, question); });
  return bracket;
}

std::optional<std::size_t> FitBounds::bisect(const std::function<std::optional<bool>(std::size_t)>& answer) {
  while (!is_closed()) {
    const std::size_t index = middle();
    const std::optional<bool> is_enough = answer(index);
    if (!is_enough) return index;
    if (*is_enough) {
      fits = index;
    } else {
      does_not = index;
    }
  }
  return std::nullopt;
}

// Nullopt: the traces do not say the same.
std::optional<bool> FitSearch::answer(std::size_t index, const FitQuestion& question) {
  auto found = answers_.find(index);
  if (found == answers_.end()) {
    if (held_events_ > kMostHeldEvents) {
      answers_.clear();
      held_events_ = 0;
    }
    found = answers_.emplace(index, make_answers(index)).first;
    held_events_ += found->second.held_events();
  }
  return found->second.answer(question);
}

FitAnswers FitSearch::make_answers(std::size_t index) const {
  FitAnswers answers;
  if (const auto found = recordings_.find(index); found != recordings_.end()) {
    answers.add(found->second);
    return answers;
  }
  for (const Line& line : lines_for(segment_around(index)))
    answers.add(Computed{.recording = on(line, index), .deviations = line.deviations});
  return answers;
}

bool FitSearch::is_between_runs(std::size_t index) const {
  const auto after = recordings_.upper_bound(index);
  return after != recordings_.begin() && after != recordings_.end();
}

FitSearch::Segment FitSearch::segment_around(std::size_t index) const {
  const auto after = recordings_.upper_bound(index);
  return {std::prev(after)->first, after->first};
}

// Returns the index `steps` runs above the run of an index, or below it; nullopt if there are fewer runs.
std::optional<std::size_t> FitSearch::run_beside(std::size_t index, int steps) const {
  auto at = recordings_.find(index);
  for (; steps > 0; --steps) {
    if (++at == recordings_.end()) return std::nullopt;
  }
  for (; steps < 0; ++steps) {
    if (at == recordings_.begin()) return std::nullopt;
    --at;
  }
  return at->first;
}

// At a third and at two thirds.
std::vector<std::size_t> FitSearch::checks_in(const Segment& segment) const {
  const auto [low, high] = segment;
  std::set<std::size_t> indexes;
  for (const std::size_t part : {std::size_t{1}, std::size_t{2}}) {
    indexes.insert(std::clamp(low + (high - low) * part / 3, low + 1, high - 1));
  }
  return {indexes.begin(), indexes.end()};
}

// Returns the lines that predict the values between two runs; none if there are not enough runs.
std::vector<FitSearch::Line> FitSearch::lines_for(const Segment& segment) const {
  if (have_one_shape(recordings_.at(segment.first), recordings_.at(segment.second))) {
    std::optional<Line> line = line_inside(segment);
    return line ? std::vector<Line>{std::move(*line)} : std::vector<Line>{};
  }
  std::optional<Line> below = line_of_side(segment.first, -1);
  std::optional<Line> above = line_of_side(segment.second, 1);
  return below && above ? std::vector<Line>{std::move(*below), std::move(*above)} : std::vector<Line>{};
}

// Through the two runs; how sizes deviate, the next runs on both sides show.
std::optional<FitSearch::Line> FitSearch::line_inside(const Segment& segment) const {
  const auto [low, high] = segment;
  Line line{.one = low, .other = high, .deviations = {}};
  const bool below = note_deviations_at(run_beside(low, -1), low, high, line.deviations);
  const bool above = note_deviations_at(low, high, run_beside(high, 1), line.deviations);
  return below || above ? std::optional(std::move(line)) : std::nullopt;
}

// Through a run and the next one in a direction, with the deviations that a third one shows.
std::optional<FitSearch::Line> FitSearch::line_of_side(std::size_t nearest, int direction) const {
  const std::optional<std::size_t> second = run_beside(nearest, direction);
  const std::optional<std::size_t> third = run_beside(nearest, 2 * direction);
  if (!second || !third) return std::nullopt;
  Line line{.one = std::min(nearest, *second), .other = std::max(nearest, *second), .deviations = {}};
  const auto [low, high] = std::minmax(nearest, *third);
  return note_deviations_at(low, *second, high, line.deviations) ? std::optional(std::move(line)) : std::nullopt;
}

// Raises the deviations to what the middle one of three runs shows. False if they are not all there, of one shape.
bool FitSearch::note_deviations_at(std::optional<std::size_t> low, std::size_t middle, std::optional<std::size_t> high,
                                   std::vector<Deviations>& deviations) const {
  if (!low || !high) return false;
  const Recording& real = recordings_.at(middle);
  if (!have_one_shape(recordings_.at(*low), real) || !have_one_shape(real, recordings_.at(*high))) return false;
  note_deviations(deviations, on({.one = *low, .other = *high, .deviations = {}}, middle), real);
  return true;
}

Recording FitSearch::on(const Line& line, std::size_t index) const {
  return on_line(recordings_.at(line.one), values_[line.one], recordings_.at(line.other), values_[line.other],
                 values_[index]);
}

namespace {

constexpr std::size_t kMostRows = 4096;

// Divides the positions between two of a range that have levels: by the golden ratio, and not in halves, so that sizes in
// steps of some power of two leave their lines at what is run.
void set_levels_between(std::vector<int>& levels, std::size_t first, std::size_t last, int level) {
  if (last - first < 2) return;
  constexpr double kSmallerPart = 0.381966;
  const auto part = static_cast<std::size_t>(kSmallerPart * static_cast<double>(last - first));
  const std::size_t middle = first + std::max(part, std::size_t{1});
  levels[middle] = level;
  set_levels_between(levels, first, middle, level + 1);
  set_levels_between(levels, middle, last, level + 1);
}

std::vector<int> levels_of(const Vary& vary) {
  std::vector<int> levels(vary.values.size());
  if (vary.is_range) set_levels_between(levels, 0, levels.size() - 1, 1);
  return levels;
}

std::size_t count_rows(const std::vector<Vary>& vary) {
  std::size_t count = 1;
  std::string names;
  for (auto one = vary.begin(); one + 1 < vary.end(); ++one) {
    count *= one->values.size();
    names += (names.empty() ? "" : " and ") + one->name;
    CACHALOT_REQUIRE(
        count <= kMostRows,
        "--vary: there are at least {} combinations of the values of {}, and {} are the most; only the last "
        "parameter, {}, may have more",
        count, names, kMostRows, vary.back().name);
  }
  return count;
}

// To each, the larger of those of two.
void add_larger(std::vector<Deviations>& deviations, const std::vector<Deviations>& one,
                const std::vector<Deviations>& other) {
  for (std::size_t part = 0; part < deviations.size(); ++part) {
    for (std::size_t i = 0; i < deviations[part].size(); ++i)
      deviations[part][i] += std::max(one[part][i], other[part][i]);
  }
}

}  // namespace

FitFrontier::FitFrontier(std::vector<Vary> vary, const std::set<std::size_t>& memory_bytes) {
  std::size_t stride = count_rows(vary);
  const std::size_t count = stride;
  for (std::size_t i = 0; i + 1 < vary.size(); ++i) {
    const std::size_t size = vary[i].values.size();
    stride /= size;
    axes_.push_back(
        {.values = vary[i].values, .levels = levels_of(vary[i]), .is_range = vary[i].is_range, .stride = stride});
    if (!vary[i].is_range || size == 1) continue;
    if (!line_axis_ || size > axes_[*line_axis_].values.size()) line_axis_ = i;
  }
  for (std::size_t row = 0; row < count; ++row) {
    int level = 0;
    for (const Axis& axis : axes_) level = std::max(level, axis.levels[position(row, axis)]);
    last_level_ = std::max(last_level_, level);
    rows_.push_back({.search = FitSearch(vary.back().values, memory_bytes), .level = level});
  }
}

std::vector<FitFrontier::Run> FitFrontier::wanted() {
  for (; level_ <= last_level_; ++level_, is_new_level_ = true) {
    std::vector<Run> wanted;
    for (std::size_t row = 0; row < rows_.size(); ++row) {
      if (rows_[row].level != level_) continue;
      if (is_new_level_) narrow_by_other_rows(row);
      if (line_axis_ && level_ > 0) narrow_by_lines(row);
      for (const std::size_t index : rows_[row].search.wanted()) wanted.push_back({.row = row, .index = index});
    }
    is_new_level_ = false;
    if (!wanted.empty()) return wanted;
    for (Row& row : rows_) {
      if (row.level == level_) row.search.close();
    }
  }
  return {};
}

void FitFrontier::add(const Run& run, Recording recording) {
  rows_[run.row].search.add(run.index, std::move(recording));
}

std::vector<std::int64_t> FitFrontier::values_of(std::size_t row) const {
  std::vector<std::int64_t> values;
  for (const Axis& axis : axes_) values.push_back(axis.values[position(row, axis)]);
  return values;
}

std::optional<std::size_t> FitFrontier::largest(std::size_t row, const FitQuestion& question) {
  return rows_[row].search.largest(question);
}

bool FitFrontier::is_corner(std::size_t row, const FitQuestion& question) {
  const std::optional<std::size_t> here = largest(row, question);
  return here && std::ranges::all_of(axes_, [&](const Axis& axis) {
           const bool is_last = !axis.is_range || position(row, axis) + 1 == axis.values.size();
           return is_last || largest(row + axis.stride, question) < here;
         });
}

bool FitFrontier::begins_ranges(std::size_t row) const {
  return std::ranges::all_of(axes_, [&](const Axis& axis) { return !axis.is_range || position(row, axis) == 0; });
}

// Returns whether values that fit in the other row are assumed to fit in this one.
bool FitFrontier::is_at_most(std::size_t row, std::size_t other) const {
  return std::ranges::all_of(axes_, [&](const Axis& axis) {
    const std::size_t here = position(row, axis);
    const std::size_t there = position(other, axis);
    return axis.is_range ? here <= there : here == there;
  });
}

void FitFrontier::narrow_by_other_rows(std::size_t row) {
  FitSearch& search = rows_[row].search;
  for (std::size_t other = 0; other < rows_.size(); ++other) {
    if (rows_[other].level >= level_) continue;
    const bool is_smaller = is_at_most(row, other);
    if (!is_smaller && !is_at_most(other, row)) continue;
    for (const FitQuestion& question : search.questions()) {
      const FitBounds known = rows_[other].search.bounds(question);
      search.narrow(question, is_smaller ? FitBounds{.fits = known.fits, .does_not = search.value_count()}
                                         : FitBounds{.fits = std::nullopt, .does_not = known.does_not});
    }
  }
}

// Narrows by the values computed between rows; stops for each question at a value that is undecided.
void FitFrontier::narrow_by_lines(std::size_t row) {
  FitSearch& search = rows_[row].search;
  std::map<std::size_t, std::optional<FitAnswers>> answers;  // by index
  const auto answer = [&](std::size_t index, const FitQuestion& question) -> std::optional<bool> {
    const auto [found, is_new] = answers.try_emplace(index);
    if (is_new) {
      if (const std::optional<Computed> computed = computed_between_rows(row, index))
        found->second.emplace().add(*computed);
    }
    return found->second ? found->second->answer(question) : std::nullopt;
  };
  for (const FitQuestion& question : search.questions()) {
    FitBounds bounds = search.bounds(question);
    bounds.bisect([&](std::size_t index) { return answer(index, question); });
    search.narrow(question, bounds);
  }
}

// On the line through the nearest rows on both sides; how sizes deviate, these and the next rows show, each between two.
std::optional<Computed> FitFrontier::computed_between_rows(std::size_t row, std::size_t index) const {
  std::vector<Beside> rows = beside(row, index, -1);
  const std::size_t high = rows.size();
  std::ranges::reverse(rows);
  std::ranges::move(beside(row, index, 1), std::back_inserter(rows));
  if (high == 0 || high == rows.size()) return std::nullopt;
  const Beside& below = rows[high - 1];
  const Beside& above = rows[high];
  if (!have_one_shape(below.computed.recording, above.computed.recording)) return std::nullopt;
  std::vector<Deviations> deviations;
  int known = 0;
  for (std::size_t i = 1; i + 1 < rows.size(); ++i) known += note_deviations_of(rows, i, deviations) ? 1 : 0;
  constexpr int kFewestKnown = 2;
  if (known < kFewestKnown) return std::nullopt;
  add_larger(deviations, below.computed.deviations, above.computed.deviations);
  const Axis& axis = axes_[*line_axis_];
  return Computed{.recording = on_line(below.computed.recording, below.at, above.computed.recording, above.at,
                                       axis.values[position(row, axis)]),
                  .deviations = std::move(deviations)};
}

// Raises the deviations to those of a row from the line through those beside it. False if they are not of one shape.
bool FitFrontier::note_deviations_of(const std::vector<Beside>& rows, std::size_t i,
                                     std::vector<Deviations>& deviations) {
  const Recording& below = rows[i - 1].computed.recording;
  const Recording& real = rows[i].computed.recording;
  const Recording& above = rows[i + 1].computed.recording;
  if (!have_one_shape(below, real) || !have_one_shape(real, above)) return false;
  note_deviations(deviations, on_line(below, rows[i - 1].at, above, rows[i + 1].at, rows[i].at), real);
  return true;
}

// Returns the nearest three in a direction that can predict the index; fewer if there are fewer.
std::vector<FitFrontier::Beside> FitFrontier::beside(std::size_t row, std::size_t index, int direction) const {
  constexpr std::size_t kWanted = 3;
  const Axis& axis = axes_[*line_axis_];
  std::vector<Beside> found;
  std::size_t at = position(row, axis);
  while (found.size() < kWanted && (direction < 0 ? at > 0 : at + 1 < axis.values.size())) {
    at = direction < 0 ? at - 1 : at + 1;
    row = direction < 0 ? row - axis.stride : row + axis.stride;
    if (std::optional<Computed> computed = rows_[row].search.computed(index))
      found.push_back({.at = axis.values[at], .computed = std::move(*computed)});
  }
  return found;
}

}  // namespace cachalot::tools
