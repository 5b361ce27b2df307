#include "tools/history/tables.h"

#include <algorithm>

namespace cachalot::tools {
namespace {

std::uint64_t sum_of(std::span<const FrameId> frames) {
  std::uint64_t sum = 0xcbf29ce484222325;  // FNV-1a
  for (const FrameId frame : frames) sum = (sum ^ frame) * 0x100000001b3;
  return sum;
}

}  // namespace

TextId TextTable::add(std::string_view text) {
  if (const auto known = ids_.find(text); known != ids_.end()) return known->second;
  const auto id = static_cast<TextId>(texts_.size());
  ids_.emplace(texts_.emplace_back(text), id);
  return id;
}

FrameId StackTable::add_frame(const StackFrame& frame) {
  const auto [known, is_new] = frame_ids_.try_emplace(frame, static_cast<FrameId>(frames_.size()));
  if (is_new) frames_.push_back(frame);
  return known->second;
}

StackId StackTable::add(std::span<const FrameId> frames) {
  if (frames.empty()) return 0;
  const std::uint64_t sum = sum_of(frames);
  const auto [first, last] = stack_ids_.equal_range(sum);
  for (auto candidate = first; candidate != last; ++candidate) {
    if (std::ranges::equal((*this)[candidate->second], frames)) return candidate->second;
  }
  const auto id = static_cast<StackId>(size());
  in_stacks_.insert(in_stacks_.end(), frames.begin(), frames.end());
  begins_.push_back(in_stacks_.size());
  stack_ids_.emplace(sum, id);
  return id;
}

}  // namespace cachalot::tools
