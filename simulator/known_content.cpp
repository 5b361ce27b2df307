#include "simulator/known_content.h"

#include <algorithm>
#include <iterator>

namespace cachalot::simulator {

// The run that contains `first`, or else the next one.
KnownContent::Runs::const_iterator KnownContent::run_at_or_after(std::uint64_t first) const {
  auto run = runs_.upper_bound(first);
  if (run != runs_.begin() && std::prev(run)->second.end > first) --run;
  return run;
}

void KnownContent::put(std::uint64_t first, std::size_t bytes, Run content) {
  if (bytes == 0) return;
  carve(first, first + bytes);
  content.end = first + bytes;
  const auto run = runs_.emplace(first, content).first;
  merge_with_next(run);
  if (run != runs_.begin()) merge_with_next(std::prev(run));
}

bool KnownContent::is_known(std::uint64_t first, std::size_t bytes) const {
  const std::uint64_t end = first + bytes;
  for (auto run = run_at_or_after(first); first < end; ++run) {
    if (run == runs_.end() || run->first > first || run->second.kind != Kind::known) return false;
    first = run->second.end;
  }
  return true;
}

bool KnownContent::is_unknown(std::uint64_t first, std::size_t bytes) const {
  const auto run = run_at_or_after(first);
  return run == runs_.end() || run->first >= first + bytes;
}

unsigned KnownContent::kinds_in(std::uint64_t first, std::size_t bytes) const {
  const std::uint64_t end = first + bytes;
  unsigned found = 0;
  for (auto run = run_at_or_after(first); first < end; ++run) {
    if (run == runs_.end() || run->first > first) found |= 1U << static_cast<unsigned>(Kind::unknown);
    if (run == runs_.end() || run->first >= end) break;
    found |= 1U << static_cast<unsigned>(run->second.kind);
    first = run->second.end;
  }
  return found;
}

void KnownContent::kinds(std::uint64_t first, std::size_t bytes, Kind* kinds) const {
  std::fill_n(kinds, bytes, Kind::unknown);
  const std::uint64_t end = first + bytes;
  for (auto run = run_at_or_after(first); run != runs_.end() && run->first < end; ++run) {
    const std::uint64_t from = std::max(run->first, first);
    std::fill(kinds + (from - first), kinds + (std::min(run->second.end, end) - first), run->second.kind);
  }
}

void KnownContent::carve(std::uint64_t first, std::uint64_t end) {
  auto run = runs_.lower_bound(first);
  if (run != runs_.begin()) {
    const auto before = std::prev(run);
    const Run old = before->second;
    if (old.end > first) before->second.end = first;
    if (old.end > end) runs_.emplace(end, old);
  }
  while (run != runs_.end() && run->first < end) {
    if (run->second.end > end) runs_.emplace(end, run->second);
    run = runs_.erase(run);
  }
}

void KnownContent::merge_with_next(Runs::iterator run) {
  const auto next = std::next(run);
  if (next == runs_.end() || next->first != run->second.end) return;
  if (next->second.kind != run->second.kind || next->second.byte != run->second.byte) return;
  run->second.end = next->second.end;
  runs_.erase(next);
}

}  // namespace cachalot::simulator
