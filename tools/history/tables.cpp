#include "tools/history/tables.h"

#include <algorithm>

namespace cachalot::tools {
namespace {

std::uint64_t hash_of(const StackFrame& frame) {
  return SeededHash()(std::uint64_t{frame.file} << 32 | frame.function, std::uint64_t{frame.line} << 32 | frame.node);
}

// The number of the next value of a table.
std::uint32_t next_id(std::size_t size, const char* what) {
  CACHALOT_REQUIRE(size < IdSet::kNone, "more than {} {}", IdSet::kNone, what);
  return static_cast<std::uint32_t>(size);
}

}  // namespace

TextId TextTable::add(std::string_view text) {
  const std::uint64_t hash = SeededHash()(text);
  const TextId known = ids_.find(hash, [&](TextId id) { return texts_[id] == text; });
  if (known != IdSet::kNone) return known;
  const TextId id = next_id(texts_.size(), "texts");
  texts_.emplace_back(text);
  ids_.add(hash, id);
  return id;
}

FrameId StackTable::add_frame(const StackFrame& frame) {
  const std::uint64_t hash = hash_of(frame);
  const FrameId known = frame_ids_.find(hash, [&](FrameId id) { return frames_[id] == frame; });
  if (known != IdSet::kNone) return known;
  const FrameId id = next_id(frames_.size(), "frames");
  frames_.push_back(frame);
  frame_ids_.add(hash, id);
  return id;
}

StackId StackTable::add(std::span<const FrameId> frames) {
  if (frames.empty()) return 0;
  const std::uint64_t hash = SeededHash()(frames);
  const StackId known = stack_ids_.find(hash, [&](StackId id) { return std::ranges::equal((*this)[id], frames); });
  if (known != IdSet::kNone) return known;
  const StackId id = next_id(size(), "call stacks");
  in_stacks_.insert(in_stacks_.end(), frames.begin(), frames.end());
  begins_.push_back(in_stacks_.size());
  stack_ids_.add(hash, id);
  return id;
}

}  // namespace cachalot::tools
