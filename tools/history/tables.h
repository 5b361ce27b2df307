// Tables of what a file names many times: texts, call stacks, streams, pools and details of events. Each value is kept
// once, and what names it has a number of 32 bits.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "cachalot/pool_id.h"

namespace cachalot::tools {

using TextId = std::uint32_t;     // 0 is ""
using FrameId = std::uint32_t;    // index in StackTable's frames
using StackId = std::uint32_t;    // 0: no call stack was recorded
using DetailsId = std::uint32_t;  // 0: nothing more is known of the event

class TextTable {
 public:
  TextTable() { add(""); }

  TextId add(std::string_view text);
  std::string_view operator[](TextId id) const { return texts_[id]; }
  std::size_t size() const { return texts_.size(); }

 private:
  std::deque<std::string> texts_;
  std::map<std::string_view, TextId> ids_;  // ordered: a file cannot make its keys collide
};

struct StackFrame {
  TextId file = 0;
  TextId function = 0;
  std::uint32_t line = 0;
  TextId node = 0;  // of an FX graph, where the program was compiled: "relu_1"

  friend auto operator<=>(const StackFrame&, const StackFrame&) = default;
};

// Call stacks; the frames of each have the newest call first.
class StackTable {
 public:
  StackTable() : begins_{0, 0} {}

  FrameId add_frame(const StackFrame& frame);
  StackId add(std::span<const FrameId> frames);  // no frames: 0
  const StackFrame& frame(FrameId id) const { return frames_[id]; }
  std::span<const FrameId> operator[](StackId id) const {
    return std::span(in_stacks_).subspan(begins_[id], begins_[id + 1] - begins_[id]);
  }
  std::size_t size() const { return begins_.size() - 1; }  // with the empty one, 0
  std::size_t frame_count() const { return frames_.size(); }

 private:
  std::vector<StackFrame> frames_;
  std::map<StackFrame, FrameId> frame_ids_;
  std::vector<FrameId> in_stacks_;                   // of all stacks, one behind the other
  std::vector<std::size_t> begins_;                  // stack i has in_stacks_[begins_[i], begins_[i + 1])
  std::multimap<std::uint64_t, StackId> stack_ids_;  // by a sum of the frames
};

// What some events have beside the usual fields.
struct EventDetails {
  StackId forward_stack = 0;     // of the call of forward, for what its backward pass allocated
  TextId compile_context = 0;    // "0/0": frame and compilation of torch.compile
  TextId user_metadata = 0;      // text, or JSON where the program gave a dict
  TextId internal_metadata = 0;  // JSON; PyTorch's since 2.15

  friend auto operator<=>(const EventDetails&, const EventDetails&) = default;
};

// Distinct values in the order in which they came; not for many.
template <typename T, typename Id>
class ValueTable {
 public:
  explicit ValueTable(std::vector<T> first = {}) {
    for (const T& value : first) add(value);
  }
  Id add(const T& value) {
    const auto [known, is_new] = ids_.try_emplace(value, static_cast<Id>(values_.size()));
    if (is_new) values_.push_back(value);
    return known->second;
  }
  const T& operator[](std::size_t id) const { return values_[id]; }
  std::size_t size() const { return values_.size(); }

 private:
  std::vector<T> values_;
  std::map<T, Id> ids_;
};

}  // namespace cachalot::tools
