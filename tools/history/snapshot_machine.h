// The machine of a pickle (pickle_program.h) that makes a history of it while it runs: of what it has read it holds what
// is not yet complete.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "tools/history/parts.h"
#include "tools/history/pickle_input.h"
#include "tools/history/snapshot_builder.h"

namespace cachalot::tools {

class SnapshotMachine {
 public:
  static constexpr std::size_t kLongestLine = std::size_t{1} << 20;

  SnapshotMachine(PickleInput& input, SnapshotBuilder& builder) : input_(input), builder_(builder) {}

  void push(Part part) {
    if (parts_.size() == parts_.capacity()) builder_.budget().charge((parts_.size() + 1) * sizeof(Part));
    parts_.push_back(part);
  }
  void push_text(std::uint64_t bytes);
  void push_text(std::string_view text) { push(builder_.text(text)); }
  void push_bytes(std::uint64_t bytes);
  void push_list() { push(builder_.parts().open(Container::Kind::list)); }
  void push_dict() { push(builder_.parts().open(Container::Kind::dict)); }
  void push_mark();
  void pop();
  void pop_to_mark() { parts_.resize(to_mark()); }
  void duplicate() { push(parts_[top(1)]); }

  void collect(std::size_t count) { collect_from(top(count)); }
  void collect_to_mark() { collect_from(to_mark()); }
  void collect_dict_to_mark();
  void append() { extend_from(top(1)); }
  void extend_to_mark() { extend_from(to_mark()); }
  void set_item() { set_items_from(top(2)); }
  void set_items_to_mark() { set_items_from(to_mark()); }

  void memoize() { builder_.parts().memoize(parts_[top(1)]); }
  void memoize(std::uint64_t index);
  void recall(std::uint64_t index);

  void stop() const;
  Part result() const { return parts_.back(); }

 private:
  std::size_t top(std::size_t count) const;
  std::size_t to_mark();
  void collect_from(std::size_t begin);
  void extend_from(std::size_t begin);
  void set_items_from(std::size_t begin);
  void set_items(Part dict, std::size_t begin);
  Part below(std::size_t begin) const;

  PickleInput& input_;
  SnapshotBuilder& builder_;
  std::vector<Part> parts_;
  std::vector<std::size_t> marks_;  // where they are: so many parts are below
};

}  // namespace cachalot::tools
