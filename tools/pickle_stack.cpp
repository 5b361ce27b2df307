#include "tools/pickle_stack.h"

#include <algorithm>
#include <span>

namespace cachalot::tools {

void PickleStack::push(Value value) {
  if (values_.size() == values_.capacity())
    document_.charge(2 * sizeof(Value) * std::max<std::size_t>(values_.size(), 1));
  values_.push_back(value);
}

void PickleStack::push_mark() {
  document_.charge(2 * sizeof(std::size_t));
  marks_.push_back(values_.size());
}

// Python takes a mark for a value here.
void PickleStack::pop() {
  if (!marks_.empty() && marks_.back() == values_.size())
    marks_.pop_back();
  else
    values_.resize(top(1));
}

Value PickleStack::result() const {
  input_.require(values_.size() == 1 && marks_.empty(),
                 "the pickle ends with {} values and {} marks on its stack, not with one value", values_.size(),
                 marks_.size());
  return values_.back();
}

// Returns where the `count` values on the top begin; all are above the last mark.
std::size_t PickleStack::top(std::size_t count) const {
  const std::size_t above = values_.size() - floor();
  input_.require(above >= count, "it needs {} values, the stack has {}", count, above);
  return values_.size() - count;
}

// Returns where the values above the last mark begin, which goes.
std::size_t PickleStack::to_mark() {
  input_.require(!marks_.empty(), "it needs a mark, there is none");
  const std::size_t mark = marks_.back();
  marks_.pop_back();
  return mark;
}

// Returns the value below those from `begin` on.
Value PickleStack::below(std::size_t begin) const {
  input_.require(begin > floor(), "there is nothing below the values");
  return values_[begin - 1];
}

void PickleStack::collect_from(std::size_t begin, Value::Kind kind) {
  const Value value = document_.add_list(std::span<const Value>(values_).subspan(begin), kind);
  values_.resize(begin);
  push(value);
}

void PickleStack::collect_dict_to_mark() {
  const std::size_t begin = to_mark();
  const Value dict = document_.add_dict();
  set_items(dict, begin);
  push(dict);
}

void PickleStack::extend_from(std::size_t begin, Value::Kind kind) {
  const Value list = below(begin);
  input_.require(list.kind() == kind, "its values go into {}, which is none of the right kind", list.kind_name());
  for (std::size_t i = begin; i < values_.size(); ++i) document_.append(list, values_[i]);
  values_.resize(begin);
}

void PickleStack::set_items_from(std::size_t begin) {
  const Value dict = below(begin);
  input_.require(dict.entries() != nullptr, "its values go into {}, which is no dict", dict.kind_name());
  set_items(dict, begin);
}

void PickleStack::set_items(Value dict, std::size_t begin) {
  const std::size_t count = values_.size() - begin;
  input_.require(count % 2 == 0, "keys and values come in pairs, these are {}", count);
  for (std::size_t i = begin; i < values_.size(); i += 2) document_.set(dict, values_[i], values_[i + 1]);
  values_.resize(begin);
}

// Python counts from 0; numbers far beyond what was memoized yet would only take memory.
void PickleStack::memoize(std::uint64_t index) {
  input_.require(index <= input_.opcode_at(), "the memo's number {} is beyond what the file has had so far", index);
  const Value value = values_[top(1)];
  if (index >= memo_.size()) {
    const std::size_t size = static_cast<std::size_t>(index) + 1;
    document_.charge(2 * sizeof(Memo) * (size - memo_.size()));
    memo_.resize(size);
  }
  memo_[static_cast<std::size_t>(index)] = {value, true};
}

void PickleStack::recall(std::uint64_t index) {
  const bool is_known = index < memo_.size() && memo_[static_cast<std::size_t>(index)].is_set;
  input_.require(is_known, "the memo has nothing under number {}", index);
  push(memo_[static_cast<std::size_t>(index)].value);
}

}  // namespace cachalot::tools
