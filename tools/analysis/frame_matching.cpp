#include "tools/analysis/frame_matching.h"

#include <algorithm>
#include <cstdlib>
#include <set>
#include <tuple>
#include <utility>
#include <vector>

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

// Of files with one name: the pairs with the longest common ends first.
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

}  // namespace cachalot::tools
