#include "tools/history/snapshot_machine.h"

#include <algorithm>
#include <optional>

namespace cachalot::tools {

// What is longer than what is kept is passed over.
void SnapshotMachine::push_text(std::uint64_t bytes) {
  const auto kept = static_cast<std::size_t>(std::min<std::uint64_t>(bytes, SnapshotBuilder::kLongestText));
  const Part text = builder_.text(input_.view(kept));
  if (bytes > kept) input_.skip(bytes - kept);
  push(text);
}

void SnapshotMachine::push_bytes(std::uint64_t bytes) {
  input_.skip(bytes);
  push(Part::of_id(Part::Kind::bytes, 0));
}

void SnapshotMachine::push_mark() {
  if (marks_.size() == marks_.capacity()) builder_.budget().charge((marks_.size() + 1) * sizeof(std::size_t));
  marks_.push_back(parts_.size());
}

// Python takes a mark for a value here.
void SnapshotMachine::pop() {
  if (!marks_.empty() && marks_.back() == parts_.size())
    marks_.pop_back();
  else
    parts_.resize(top(1));
}

void SnapshotMachine::stop() const {
  input_.require(parts_.size() == 1 && marks_.empty(),
                 "the pickle ends with {} values and {} marks on its stack, not with one value", parts_.size(),
                 marks_.size());
}

// Returns where the `count` parts on the top begin; all are above the last mark.
std::size_t SnapshotMachine::top(std::size_t count) const {
  const std::size_t above = parts_.size() - (marks_.empty() ? 0 : marks_.back());
  input_.require(above >= count, "it needs {} values, the stack has {}", count, above);
  return parts_.size() - count;
}

// Returns where the parts above the last mark begin, which goes.
std::size_t SnapshotMachine::to_mark() {
  input_.require(!marks_.empty(), "it needs a mark, there is none");
  const std::size_t mark = marks_.back();
  marks_.pop_back();
  return mark;
}

// Returns the part below those from `begin` on.
Part SnapshotMachine::below(std::size_t begin) const {
  input_.require(begin > (marks_.empty() ? 0 : marks_.back()), "there is nothing below the values");
  return parts_[begin - 1];
}

void SnapshotMachine::collect_from(std::size_t begin) {
  const Part list = builder_.parts().open(Container::Kind::list);
  for (std::size_t i = begin; i < parts_.size(); ++i) builder_.append(list, parts_[i]);
  parts_.resize(begin);
  push(list);
}

void SnapshotMachine::collect_dict_to_mark() {
  const std::size_t begin = to_mark();
  const Part dict = builder_.parts().open(Container::Kind::dict);
  set_items(dict, begin);
  push(dict);
}

void SnapshotMachine::extend_from(std::size_t begin) {
  const Part list = below(begin);
  for (std::size_t i = begin; i < parts_.size(); ++i) builder_.append(list, parts_[i]);
  parts_.resize(begin);
}

void SnapshotMachine::set_items_from(std::size_t begin) { set_items(below(begin), begin); }

void SnapshotMachine::set_items(Part dict, std::size_t begin) {
  const std::size_t count = parts_.size() - begin;
  input_.require(count % 2 == 0, "keys and values come in pairs, these are {}", count);
  for (std::size_t i = begin; i < parts_.size(); i += 2) builder_.set(dict, parts_[i], parts_[i + 1]);
  parts_.resize(begin);
}

// Python counts from 0; numbers far beyond what was memoized yet would only take memory.
void SnapshotMachine::memoize(std::uint64_t index) {
  input_.require(index <= input_.opcode_at(), "the memo's number {} is beyond what the file has had so far", index);
  builder_.parts().memoize(index, parts_[top(1)]);
}

void SnapshotMachine::recall(std::uint64_t index) {
  const std::optional<Part> part = builder_.parts().recall(index);
  input_.require(part.has_value(), "the memo has nothing under number {}", index);
  push(*part);
}

}  // namespace cachalot::tools
