#include "tools/pages/run_stacks.h"

#include <algorithm>
#include <span>
#include <string>

namespace cachalot::tools {

std::uint64_t RunStacks::child_of(std::uint64_t parent, FrameId frame) {
  const auto [known, is_new] = ids_.try_emplace({parent, frame}, parents_.size() + 1);
  if (!is_new) return known->second;
  const auto [number, is_new_frame] = frame_numbers_.try_emplace(frame, frames_.size());
  if (is_new_frame) frames_.push_back(frame);
  parents_.push_back(parent);
  node_frames_.push_back(number->second);
  return known->second;
}

// From the outermost call inwards.
std::uint64_t RunStacks::node_of(StackId stack) {
  const std::span<const FrameId> frames = history_.stacks[stack];
  const std::size_t depth = std::min(frames.size(), kDeepest);
  std::uint64_t node = 0;
  for (std::size_t i = 0; i < depth; ++i) node = child_of(node, frames[frames.size() - 1 - i]);
  return node;
}

std::uint64_t RunStacks::add(StackId stack, DetailsId details) {
  const StackId telling = sites_.telling_stack(stack, details);
  const auto [known, is_new] = numbers_.try_emplace(telling, nodes_.size());
  if (is_new) nodes_.push_back(node_of(telling));
  return known->second;
}

void RunStacks::write(std::string_view prefix, ColumnWriter& columns, TextTable& texts) {
  std::vector<std::uint64_t> files;
  std::vector<std::uint64_t> functions;
  std::vector<std::uint64_t> lines;
  std::vector<std::uint64_t> origins;
  for (const FrameId id : frames_) {
    const StackFrame& frame = history_.stacks.frame(id);
    files.push_back(texts.add(history_.texts[frame.file]));
    functions.push_back(texts.add(history_.texts[frame.function]));
    lines.push_back(frame.line);
    origins.push_back(static_cast<std::uint64_t>(sites_.origin(id)));
  }
  const std::string begin(prefix);
  columns.add_plain(begin + "node", nodes_);
  columns.add_deltas(begin + "parent", parents_);
  columns.add_plain(begin + "frame", node_frames_);
  columns.add_plain(begin + "file", files);
  columns.add_plain(begin + "function", functions);
  columns.add_plain(begin + "line", lines);
  columns.add_plain(begin + "origin", origins);
}

}  // namespace cachalot::tools
