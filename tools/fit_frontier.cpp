#include "tools/fit_frontier.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <utility>

#include "base/check.h"

namespace cachalot::tools {
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

// Whether what fits in the other row is assumed to fit in this one.
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

// By what is computed between rows; stops for each question at a value that is undecided.
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

// The nearest three in a direction that can tell of the index; fewer if there are not so many.
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
