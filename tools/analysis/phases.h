// The begins of a program's phases: setup, forward and backward passes, steps of an optimizer.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <limits>
#include <vector>

#include "tools/analysis/categories.h"

namespace cachalot::tools {

inline constexpr std::uint32_t kNoEvent = std::numeric_limits<std::uint32_t>::max();

// The begins of a program's phases. A run is events in a row that the same phase made, or none (Means::category).
class Phases {
 public:
  using Means = CategoryRule::Means;

  // `sees_others`: an event of no phase ends a run. Otherwise it may be one of a backward pass.
  explicit Phases(bool sees_others) : sees_others_(sees_others) {}

  void add(std::uint32_t event, Means phase) {
    if (runs_.empty() || runs_.back().phase != phase) runs_.push_back({.begin = event, .last = event, .phase = phase});
    runs_.back().last = event;
    if (phase == last_ || (phase == Means::category && !sees_others_)) return;
    last_ = phase;
    begins_.push_back(event);
    begins_of_[static_cast<std::size_t>(phase)].push_back(event);
  }

  void add_failure(std::uint32_t event) { failures_.push_back(event); }

  // Returns the phase that the newest allocation before the event, or with it, was made in.
  Means at(std::uint32_t event) const {
    const auto next = std::ranges::upper_bound(runs_, event, {}, &Run::begin);
    return next == runs_.begin() || event == kNoEvent ? Means::category : std::prev(next)->phase;
  }
  // Returns whether the event lies between a forward pass and its backward pass, where programs compute the loss.
  bool is_between_passes(std::uint32_t event) const {
    const auto next = std::ranges::upper_bound(runs_, event, {}, &Run::begin);
    return next - runs_.begin() >= 2 && next != runs_.end() && next->phase == Means::backward &&
           std::prev(next, 2)->phase == Means::forward;
  }
  // Returns the last event of the run of `event`.
  std::uint32_t last_of_run_at(std::uint32_t event) const {
    const auto next = std::ranges::upper_bound(runs_, event, {}, &Run::begin);
    return next == runs_.begin() ? event : std::prev(next)->last;
  }
  // Returns the first event behind `event` at which memory ran out, or kNoEvent.
  std::uint32_t next_failure(std::uint32_t event) const { return first_after(failures_, event); }
  // Returns the event with which the first run of another phase than that of `event` begins, or kNoEvent.
  std::uint32_t end_of_run_at(std::uint32_t event) const { return first_after(begins_, event); }
  // Returns the event with which the first run of `phase` behind `event` begins, or kNoEvent.
  std::uint32_t next(Means phase, std::uint32_t event) const {
    return first_after(begins_of_[static_cast<std::size_t>(phase)], event);
  }

 private:
  struct Run {
    std::uint32_t begin = 0;
    std::uint32_t last = 0;  // event
    Means phase = Means::category;
  };

  static std::uint32_t first_after(const std::vector<std::uint32_t>& begins, std::uint32_t event) {
    const auto after = std::ranges::upper_bound(begins, event);
    return after == begins.end() ? kNoEvent : *after;
  }

  const bool sees_others_;
  Means last_ = Means::category;
  std::vector<Run> runs_;
  std::vector<std::uint32_t> failures_;
  std::vector<std::uint32_t> begins_;
  std::array<std::vector<std::uint32_t>, static_cast<std::size_t>(Means::reduction) + 1> begins_of_;  // by phase
};

}  // namespace cachalot::tools
