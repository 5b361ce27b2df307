// Plain data that a reader built of a file: nothing, truth values, numbers, text, and lists and dicts of them. It can hold
// nothing else: no code, no object of a class.
//
// A document owns all its values, in one place: a value is a number, or a pointer into its document. So values may be named
// many times, as a pickle does, without being copied; a list that holds itself does no harm; and nothing here recurses,
// however deep a file nests. Who walks a document must mind that the same part may come again and again: value_count() is
// the most that a walk over different parts can see.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tools/input_file.h"
#include "tools/memory_budget.h"

namespace cachalot::tools {

class Value;
using List = std::vector<Value>;
using Dict = std::vector<std::pair<Value, Value>>;  // in the order of the file

// Valid as long as its document. Two machine words, to be passed by value.
class Value {
 public:
  enum class Kind : std::uint8_t { none, boolean, integer, natural, real, text, bytes, list, tuple, set, dict };

  Value() = default;
  static Value of_boolean(bool value) { return {Kind::boolean, Payload{.integer = value ? 1 : 0}}; }
  static Value of_integer(std::int64_t value) { return {Kind::integer, Payload{.integer = value}}; }
  static Value of_natural(std::uint64_t value) { return {Kind::natural, Payload{.natural = value}}; }
  static Value of_real(double value) { return {Kind::real, Payload{.real = value}}; }

  Kind kind() const { return kind_; }
  // What a message calls it: "a number", "a dict".
  const char* kind_name() const;

  // nullopt, or nullptr, for a value of another kind.
  std::optional<bool> boolean() const;
  std::optional<std::uint64_t> natural() const;  // a whole number from 0
  std::optional<std::int64_t> integer() const;
  std::optional<double> real() const;
  std::optional<std::string_view> text() const;
  const List* items() const;  // of a list, a tuple or a set
  const Dict* entries() const;
  // The last entry with this key, as Python has it; nullptr: this is no dict, or it has none.
  const Value* find(std::string_view key) const;

 private:
  friend class PlainDocument;
  union Payload {
    std::int64_t integer = 0;
    std::uint64_t natural;
    double real;
    const std::string* text;
    List* items;
    Dict* entries;
  };
  Value(Kind kind, Payload payload) : kind_(kind), payload_(payload) {}

  Kind kind_ = Kind::none;
  Payload payload_;
};

class PlainDocument {
 public:
  // `memory_limit` in bytes: what would go beyond throws InvalidArgument.
  explicit PlainDocument(std::size_t memory_limit) : budget_(memory_limit) {}

  Value add_text(std::string text);
  Value add_bytes(std::string bytes);
  Value add_list() { return add_list({}, Value::Kind::list); }
  Value add_list(std::span<const Value> items, Value::Kind kind);  // list, tuple or set
  Value add_dict();
  // The caller has looked: `list` has items(), `dict` has entries().
  void append(Value list, Value item);
  void set(Value dict, Value key, Value value);

  // Host memory that something else takes on the document's account: a reader's stack.
  void charge(std::size_t bytes) { budget_.charge(bytes); }
  MemoryBudget& budget() { return budget_; }

  std::size_t value_count() const { return value_count_; }
  Value root() const { return root_; }
  void set_root(Value root) { root_ = root; }

 private:
  MemoryBudget budget_;
  std::size_t value_count_ = 0;
  std::deque<std::string> texts_;
  std::deque<List> lists_;
  std::deque<Dict> dicts_;
  Value root_;
};

// One JSON text, which fills the file. Throws InvalidArgument, which names file, position and rule.
std::unique_ptr<PlainDocument> read_json(InputFile file);

}  // namespace cachalot::tools
