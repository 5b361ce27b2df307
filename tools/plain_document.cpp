#include "tools/plain_document.h"

#include <fmt/format.h>
#include <istream>
#include <limits>
#include <nlohmann/json.hpp>

#include "base/check.h"
#include "tools/file_stream.h"
#include "tools/quoted.h"

namespace cachalot::tools {
namespace {

// Vectors grow by doubling: what is appended costs twice its size at most.
constexpr std::size_t kItemBytes = 2 * sizeof(Value);
constexpr std::size_t kEntryBytes = 2 * sizeof(Dict::value_type);

}  // namespace

// --- values -----------------------------------------------------------------------------------------------------------

const char* Value::kind_name() const {
  switch (kind_) {
    case Kind::none:
      return "None";
    case Kind::boolean:
      return "a truth value";
    case Kind::integer:
    case Kind::natural:
    case Kind::real:
      return "a number";
    case Kind::text:
      return "text";
    case Kind::bytes:
      return "bytes";
    case Kind::list:
    case Kind::tuple:
    case Kind::set:
      return "a list";
    case Kind::dict:
      return "a dict";
  }
  return "unknown";
}

std::optional<bool> Value::boolean() const {
  if (kind_ != Kind::boolean) return std::nullopt;
  return payload_.integer != 0;
}

std::optional<std::uint64_t> Value::natural() const {
  if (kind_ == Kind::natural) return payload_.natural;
  if (kind_ != Kind::integer || payload_.integer < 0) return std::nullopt;
  return static_cast<std::uint64_t>(payload_.integer);
}

std::optional<std::int64_t> Value::integer() const {
  if (kind_ == Kind::integer) return payload_.integer;
  if (kind_ != Kind::natural || payload_.natural > std::uint64_t{std::numeric_limits<std::int64_t>::max()}) {
    return std::nullopt;
  }
  return static_cast<std::int64_t>(payload_.natural);
}

std::optional<double> Value::real() const {
  if (kind_ != Kind::real) return std::nullopt;
  return payload_.real;
}

std::optional<std::string_view> Value::text() const {
  if (kind_ != Kind::text) return std::nullopt;
  return *payload_.text;
}

const List* Value::items() const {
  const bool has_items = kind_ == Kind::list || kind_ == Kind::tuple || kind_ == Kind::set;
  return has_items ? payload_.items : nullptr;
}

const Dict* Value::entries() const { return kind_ == Kind::dict ? payload_.entries : nullptr; }

const Value* Value::find(std::string_view key) const {
  if (kind_ != Kind::dict) return nullptr;
  for (auto entry = payload_.entries->rbegin(); entry != payload_.entries->rend(); ++entry) {
    if (entry->first.text() == key) return &entry->second;
  }
  return nullptr;
}

// --- documents --------------------------------------------------------------------------------------------------------

Value PlainDocument::add_text(std::string text) {
  charge(sizeof(std::string) + text.capacity());
  ++value_count_;
  return {Value::Kind::text, {.text = &texts_.emplace_back(std::move(text))}};
}

Value PlainDocument::add_bytes(std::string bytes) {
  Value value = add_text(std::move(bytes));
  value.kind_ = Value::Kind::bytes;
  return value;
}

Value PlainDocument::add_list(std::span<const Value> items, Value::Kind kind) {
  charge(sizeof(List) + items.size() * kItemBytes);
  value_count_ += 1 + items.size();
  return {kind, {.items = &lists_.emplace_back(items.begin(), items.end())}};
}

Value PlainDocument::add_dict() {
  charge(sizeof(Dict));
  ++value_count_;
  return {Value::Kind::dict, {.entries = &dicts_.emplace_back()}};
}

void PlainDocument::append(Value list, Value item) {
  charge(kItemBytes);
  ++value_count_;
  list.payload_.items->push_back(item);
}

void PlainDocument::set(Value dict, Value key, Value value) {
  charge(kEntryBytes);
  ++value_count_;
  dict.payload_.entries->emplace_back(key, value);
}

// --- JSON -------------------------------------------------------------------------------------------------------------

namespace {

// Takes what nlohmann's parser sees. It keeps its own stack and does not recurse, either.
class JsonBuilder : public nlohmann::json_sax<nlohmann::json> {
 public:
  explicit JsonBuilder(PlainDocument& document) : document_(document) {}

  bool null() override { return add({}); }
  bool boolean(bool value) override { return add(Value::of_boolean(value)); }
  bool number_integer(number_integer_t value) override { return add(Value::of_integer(value)); }
  bool number_unsigned(number_unsigned_t value) override { return add(Value::of_natural(value)); }
  bool number_float(number_float_t value, const string_t&) override { return add(Value::of_real(value)); }
  bool string(string_t& value) override { return add(document_.add_text(std::move(value))); }
  bool binary(binary_t&) override { return false; }  // of other formats than JSON
  bool start_object(std::size_t) override { return open(document_.add_dict()); }
  bool key(string_t& value) override {
    open_.back().key = document_.add_text(std::move(value));
    return true;
  }
  bool end_object() override { return close(); }
  bool start_array(std::size_t) override { return open(document_.add_list()); }
  bool end_array() override { return close(); }
  bool parse_error(std::size_t position, const std::string& last, const nlohmann::json::exception&) override {
    trouble_ = fmt::format("byte {}: this is not JSON: {}", position, Quoted{last});
    return false;
  }

  const std::string& trouble() const { return trouble_; }

 private:
  struct Open {
    Value value;
    Value key;  // the newest, of a dict
  };

  bool add(Value value) {
    if (open_.empty()) {
      document_.set_root(value);
    } else if (const Open& parent = open_.back(); parent.value.entries() != nullptr) {
      document_.set(parent.value, parent.key, value);
    } else {
      document_.append(parent.value, value);
    }
    return true;
  }
  bool open(Value value) {
    add(value);
    document_.charge(2 * sizeof(Open));
    open_.push_back({value, {}});
    return true;
  }
  bool close() {
    open_.pop_back();
    return true;
  }

  PlainDocument& document_;
  std::vector<Open> open_;
  std::string trouble_;
};

}  // namespace

std::unique_ptr<PlainDocument> read_json(InputFile file) {
  auto document = std::make_unique<PlainDocument>(file.memory_limit());
  JsonBuilder builder(*document);
  FileStream buffer(file);
  std::istream stream(&buffer);
  try {
    nlohmann::json::sax_parse(stream, &builder);
  } catch (const InvalidArgument& error) {
    throw InvalidArgument(fmt::format("{}: {}", file.path(), error.what()));
  }
  CACHALOT_REQUIRE(file.trouble().empty(), "{}: {}", file.path(), file.trouble());
  CACHALOT_REQUIRE(!buffer.is_too_long(), "{}: longer than the most for a file of its size", file.path());
  CACHALOT_REQUIRE(builder.trouble().empty(), "{}: {}", file.path(), builder.trouble());
  return document;
}

}  // namespace cachalot::tools
