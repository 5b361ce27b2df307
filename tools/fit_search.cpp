#include "tools/fit_search.h"

#include <algorithm>
#include <iterator>

namespace cachalot::tools {
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
           return a.other_bytes == b.other_bytes && is_near(peak_live_bytes(a.trace), peak_live_bytes(b.trace));
         });
}

FitSearch::FitSearch(std::vector<std::int64_t> values, std::set<std::size_t> memory_bytes)
    : values_(std::move(values)), memory_bytes_(std::move(memory_bytes)) {}

std::vector<std::size_t> FitSearch::wanted() {
  std::set<std::size_t> wanted;
  for (const std::size_t end : {std::size_t{0}, values_.size() - 1}) {
    if (!recordings_.contains(end)) wanted.insert(end);
  }
  if (!wanted.empty()) return {wanted.begin(), wanted.end()};
  for (const std::size_t bytes : memory_bytes_) {
    for (const Policy policy : kPolicies) {
      const Bracket bracket = bracket_of({.policy = policy, .memory_bytes = bytes});
      if (bracket.undecided) {
        wanted.insert(*bracket.undecided);
      } else if (!bracket.is_closed()) {
        for (const std::size_t index : checks_in({*bracket.fits, bracket.does_not})) wanted.insert(index);
      }
    }
  }
  return {wanted.begin(), wanted.end()};
}

// What was computed with the lines around it is not known any more.
void FitSearch::add(std::size_t index, Recording recording) {
  recordings_.insert_or_assign(index, std::move(recording));
  constexpr int kRunsOfALine = 3;
  const std::size_t first = run_beside(index, -kRunsOfALine).value_or(0);
  const std::size_t last = run_beside(index, kRunsOfALine).value_or(values_.size());
  for (auto at = fits_.lower_bound(first); at != fits_.end() && at->first <= last;) at = fits_.erase(at);
}

std::optional<std::size_t> FitSearch::largest(Policy policy, std::size_t memory_bytes) {
  return bracket_of({.policy = policy, .memory_bytes = memory_bytes}).fits;
}

FitSearch::Bracket FitSearch::bracket_of(const Question& question) {
  Bracket bracket{.fits = std::nullopt, .does_not = values_.size(), .undecided = std::nullopt};
  for (const auto& [index, recording] : recordings_) {
    if (recording.is_too_large || !*answer(index, question)) {
      bracket.does_not = index;
      break;
    }
    bracket.fits = index;
  }
  if (!bracket.is_closed() && !lines_for({*bracket.fits, bracket.does_not}).empty()) bisect(bracket, question);
  return bracket;
}

// By what is computed. Stops at an index that is undecided.
void FitSearch::bisect(Bracket& bracket, const Question& question) {
  while (!bracket.is_closed()) {
    const std::size_t middle = *bracket.fits + (bracket.does_not - *bracket.fits) / 2;
    const std::optional<bool> fits = answer(middle, question);
    if (!fits) {
      bracket.undecided = middle;
      return;
    }
    if (*fits) {
      bracket.fits = middle;
    } else {
      bracket.does_not = middle;
    }
  }
}

// Nullopt: the traces do not say the same.
std::optional<bool> FitSearch::answer(std::size_t index, const Question& question) {
  const auto all_fit = [&](std::vector<PartFit>& parts) {
    return std::ranges::all_of(parts, [&](PartFit& part) {
      return question.memory_bytes >= part.other_bytes &&
             part.fit.fits(question.policy, question.memory_bytes - part.other_bytes);
    });
  };
  Fits& fits = fits_of(index);
  const bool first = all_fit(fits.front());
  const bool is_certain =
      std::all_of(fits.begin() + 1, fits.end(), [&](auto& parts) { return all_fit(parts) == first; });
  return is_certain ? std::optional(first) : std::nullopt;
}

FitSearch::Fits& FitSearch::fits_of(std::size_t index) {
  if (const auto found = fits_.find(index); found != fits_.end()) return found->second;
  if (held_events_ > kMostHeldEvents) {
    fits_.clear();
    held_events_ = 0;
  }
  Fits& fits = fits_[index] = make_fits(index);
  for (const Recording::Part& part : std::prev(recordings_.upper_bound(index))->second.parts) {
    held_events_ += fits.size() * part.trace.event_count;
  }
  return fits;
}

FitSearch::Fits FitSearch::make_fits(std::size_t index) const {
  if (const auto found = recordings_.find(index); found != recordings_.end())
    return {fits_of_parts(found->second.parts)};
  Fits fits;
  for (const Line& line : lines_for(segment_around(index))) {
    std::vector<Recording::Part> low = parts_on(line, index);
    std::vector<Recording::Part> high = low;
    for (std::size_t i = 0; i < low.size(); ++i) {
      low[i].trace = lowered(std::move(low[i].trace), line.deviations[i]);
      high[i].trace = raised(std::move(high[i].trace), line.deviations[i]);
    }
    fits.push_back(fits_of_parts(low));
    fits.push_back(fits_of_parts(high));
  }
  return fits;
}

std::vector<FitSearch::PartFit> FitSearch::fits_of_parts(const std::vector<Recording::Part>& parts) {
  std::vector<PartFit> fits;
  fits.reserve(parts.size());
  for (const Recording::Part& part : parts)
    fits.push_back({.fit = PolicyFit(part.trace), .other_bytes = part.other_bytes});
  return fits;
}

FitSearch::Segment FitSearch::segment_around(std::size_t index) const {
  const auto after = recordings_.upper_bound(index);
  return {std::prev(after)->first, after->first};
}

// The index so many runs above the run of an index, or below it; nullopt if there are not so many.
std::optional<std::size_t> FitSearch::run_beside(std::size_t index, int steps) const {
  auto at = recordings_.find(index);
  for (; steps > 0; --steps) {
    if (++at == recordings_.end()) return std::nullopt;
  }
  for (; steps < 0; ++steps) {
    if (at-- == recordings_.begin()) return std::nullopt;
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

// The lines that tell of the values between two runs; none where there are not enough runs.
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
  const std::vector<Recording::Part> expected = parts_on({.one = *low, .other = *high, .deviations = {}}, middle);
  if (deviations.empty()) {
    for (const Recording::Part& part : real.parts) deviations.emplace_back(part.trace.event_count);
  }
  for (std::size_t i = 0; i < deviations.size(); ++i)
    note_deviations(deviations[i], expected[i].trace, real.parts[i].trace);
  return true;
}

std::vector<Recording::Part> FitSearch::parts_on(const Line& line, std::size_t index) const {
  std::vector<Recording::Part> parts = recordings_.at(line.one).parts;
  const Recording& other = recordings_.at(line.other);
  for (std::size_t i = 0; i < parts.size(); ++i) {
    parts[i].trace = on_line({.trace = parts[i].trace, .value = values_[line.one]},
                             {.trace = other.parts[i].trace, .value = values_[line.other]}, values_[index]);
  }
  return parts;
}

}  // namespace cachalot::tools
