#include "device/use_map.h"

#include <algorithm>
#include <iterator>

CACHALOT_BEGIN

void add_use(std::vector<Use>& uses, const Use& use) {
  for (Use& known : uses) {
    if (known.stream != use.stream || known.mapping != use.mapping) continue;
    known.launch = std::max(known.launch, use.launch);
    return;
  }
  uses.push_back(use);
}

// The first interval at or after `position`, where the interval that spans it is cut in two.
UseMap::Intervals::iterator UseMap::cut_at(std::uint64_t position) {
  const auto next = intervals_.lower_bound(position);
  if (next == intervals_.begin()) return next;
  Interval& before = std::prev(next)->second;
  if (before.end <= position) return next;
  const auto cut = intervals_.emplace_hint(next, position, before);
  before.end = position;
  return cut;
}

void UseMap::fill(std::uint64_t first, std::size_t bytes) {
  const std::uint64_t end = first + bytes;
  auto at = cut_at(first);
  while (first < end) {
    const bool known = at != intervals_.end() && at->first == first;
    if (!known) {
      const std::uint64_t gap_end = at == intervals_.end() ? end : std::min(end, at->first);
      at = intervals_.emplace_hint(at, first, Interval{.end = gap_end, .owner = 0, .uses = {}});
    }
    first = at->second.end;
    ++at;
  }
}

void UseMap::merge_equals(std::uint64_t first, std::size_t bytes) {
  const std::uint64_t end = first + bytes;
  auto at = intervals_.lower_bound(first);
  while (at != intervals_.end()) {
    const auto next = std::next(at);
    if (next == intervals_.end() || next->second.end > end) return;
    Interval& low = at->second;
    const Interval& high = next->second;
    if (low.end == next->first && low.owner == high.owner && low.uses == high.uses) {
      low.end = high.end;
      intervals_.erase(next);
    } else {
      at = next;
    }
  }
}

void UseMap::erase(std::uint64_t first, std::size_t bytes) {
  const std::uint64_t end = first + bytes;
  auto at = cut_at(first);
  cut_at(end);
  while (at != intervals_.end() && at->first < end) at = intervals_.erase(at);
}

CACHALOT_END
