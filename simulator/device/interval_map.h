// An IntervalMap has a value for each of some intervals of numbers, which are cut where a value changes.
//
// Invariants: intervals do not overlap and are not empty. Not thread-safe.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <map>
#include <utility>

#include "base/format.h"

CACHALOT_BEGIN

template <typename Value>
class IntervalMap {
 public:
  struct Range {
    std::uint64_t first = 0;
    std::uint64_t end = 0;  // behind its last number
  };

  // Calls visit(range, value) for each known part of [first, first + size), cut to it.
  template <typename Visit>
  void for_each(std::uint64_t first, std::size_t size, Visit visit) {
    const std::uint64_t end = first + size;
    for (auto at = cut_at(first); at != intervals_.end() && at->first < end; ++at) {
      if (at->second.end > end) cut_at(end);
      visit(Range{at->first, at->second.end}, at->second.value);
    }
  }
  // Calls visit(range, value) as for_each does, after giving a new value to the parts that have none.
  template <typename Visit>
  void for_each_filled(std::uint64_t first, std::size_t size, Visit visit) {
    fill(first, size);
    for_each(first, size, visit);
  }
  // Makes one interval of neighbours within the range with equal values.
  void merge_equals(std::uint64_t first, std::size_t size);
  void erase(std::uint64_t first, std::size_t size);
  std::size_t size() const { return intervals_.size(); }

 private:
  struct Interval {
    std::uint64_t end = 0;
    Value value;
  };
  using Intervals = std::map<std::uint64_t, Interval>;

  typename Intervals::iterator cut_at(std::uint64_t position);
  void fill(std::uint64_t first, std::size_t size);

  Intervals intervals_;
};

// Returns the first interval at or after `position`, where the interval that spans it is cut in two.
template <typename Value>
typename IntervalMap<Value>::Intervals::iterator IntervalMap<Value>::cut_at(std::uint64_t position) {
  const auto next = intervals_.lower_bound(position);
  if (next == intervals_.begin()) return next;
  Interval& before = std::prev(next)->second;
  if (before.end <= position) return next;
  const auto cut = intervals_.emplace_hint(next, position, before);
  before.end = position;
  return cut;
}

template <typename Value>
void IntervalMap<Value>::fill(std::uint64_t first, std::size_t size) {
  const std::uint64_t end = first + size;
  auto at = cut_at(first);
  while (first < end) {
    const bool known = at != intervals_.end() && at->first == first;
    if (!known) {
      const std::uint64_t gap_end = at == intervals_.end() ? end : std::min(end, at->first);
      at = intervals_.emplace_hint(at, first, Interval{.end = gap_end, .value = {}});
    }
    first = at->second.end;
    ++at;
  }
}

template <typename Value>
void IntervalMap<Value>::merge_equals(std::uint64_t first, std::size_t size) {
  const std::uint64_t end = first + size;
  auto at = intervals_.lower_bound(first);
  while (at != intervals_.end()) {
    const auto next = std::next(at);
    if (next == intervals_.end() || next->second.end > end) return;
    if (at->second.end == next->first && at->second.value == next->second.value) {
      at->second.end = next->second.end;
      intervals_.erase(next);
    } else {
      at = next;
    }
  }
}

template <typename Value>
void IntervalMap<Value>::erase(std::uint64_t first, std::size_t size) {
  const std::uint64_t end = first + size;
  auto at = cut_at(first);
  cut_at(end);
  while (at != intervals_.end() && at->first < end) at = intervals_.erase(at);
}

CACHALOT_END
