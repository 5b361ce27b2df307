// The machine of a pickle, without its opcodes: a stack of values with marks in it, and a memo of values by number.
// What is asked of it and cannot be throws BrokenPickle.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "tools/pickle_input.h"
#include "tools/plain_document.h"

namespace cachalot::tools {

class PickleStack {
 public:
  PickleStack(const PickleInput& input, PlainDocument& document) : input_(input), document_(document) {}

  void push(Value value);
  void push_mark();
  void pop();
  void pop_to_mark() { values_.resize(to_mark()); }
  void duplicate() { push(values_[top(1)]); }
  // Returns the only value that is left.
  Value result() const;

  // The `count` values on the top, or those above the last mark, become one value.
  void collect(std::size_t count, Value::Kind kind) { collect_from(top(count), kind); }
  void collect_to_mark(Value::Kind kind) { collect_from(to_mark(), kind); }
  void collect_dict_to_mark();
  // The value on the top, or those above the last mark, go into the list or set below them.
  void append() { extend_from(top(1), Value::Kind::list); }
  void extend_to_mark(Value::Kind kind) { extend_from(to_mark(), kind); }
  // A key and its value on the top, or those above the last mark, go into the dict below them.
  void set_item() { set_items_from(top(2)); }
  void set_items_to_mark() { set_items_from(to_mark()); }

  // The memo gets the value on the top, under the number, or under the next one.
  void memoize(std::uint64_t index);
  void memoize() { memoize(memo_.size()); }
  void recall(std::uint64_t index);

 private:
  struct Memo {
    Value value;
    bool is_set = false;
  };

  std::size_t floor() const { return marks_.empty() ? 0 : marks_.back(); }
  std::size_t top(std::size_t count) const;
  std::size_t to_mark();
  Value below(std::size_t begin) const;
  void collect_from(std::size_t begin, Value::Kind kind);
  void extend_from(std::size_t begin, Value::Kind kind);
  void set_items_from(std::size_t begin);
  void set_items(Value dict, std::size_t begin);

  const PickleInput& input_;
  PlainDocument& document_;
  std::vector<Value> values_;
  std::vector<std::size_t> marks_;  // where they are: so many values are below
  std::vector<Memo> memo_;
};

}  // namespace cachalot::tools
