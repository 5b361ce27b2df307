// A JsonWriter writes one JSON value of any depth into a string, in the order of the calls.
#pragma once

#include <concepts>
#include <cstddef>
#include <string>
#include <string_view>
#include <utility>

#include "cachalot/version.h"

CACHALOT_BEGIN

// Appends `text` as a JSON string, quotes included. JSON is UTF-8; users' texts, paths and names of functions need not be: each
// byte that is not part of a character becomes U+FFFD.
void append_json_string(std::string& out, std::string_view text);
// Appends the shortest text that reads back as `number`; null for what JSON cannot say (infinities, not a number).
void append_json_number(std::string& out, double number);

// Not thread-safe. Objects and arrays are closed by the caller; commas come by themselves.
class JsonWriter {
 public:
  JsonWriter& begin_object() { return begin('{'); }
  JsonWriter& end_object() { return end('}'); }
  JsonWriter& begin_array() { return begin('['); }
  JsonWriter& end_array() { return end(']'); }

  // The key of the object's next member.
  JsonWriter& key(std::string_view key) {
    separate();
    append_json_string(out_, key);
    out_ += ':';
    needs_comma_ = false;
    return *this;
  }

  JsonWriter& value(std::string_view text) {
    separate();
    append_json_string(out_, text);
    return *this;
  }
  JsonWriter& value(const char* text) { return value(std::string_view(text)); }
  JsonWriter& value(std::integral auto number) {
    separate();
    if constexpr (std::same_as<decltype(number), bool>) {
      out_ += number ? "true" : "false";
    } else {
      out_ += std::to_string(number);
    }
    return *this;
  }
  JsonWriter& value(double number) {
    separate();
    append_json_number(out_, number);
    return *this;
  }
  JsonWriter& value(std::nullptr_t) { return raw("null"); }

  // Text that is JSON already.
  JsonWriter& raw(std::string_view json) {
    separate();
    out_ += json;
    return *this;
  }

  template <typename Value>
  JsonWriter& member(std::string_view name, const Value& of_member) {
    return key(name).value(of_member);
  }
  // An array member: write(writer, item) for each item.
  template <typename Items, typename Write>
  JsonWriter& list(const Items& items, Write write) {
    begin_array();
    for (const auto& item : items) write(*this, item);
    return end_array();
  }
  template <typename Items>
  JsonWriter& list(const Items& items) {
    return list(items, [](JsonWriter& json, const auto& item) { json.value(item); });
  }

  std::string take() { return std::exchange(out_, {}); }

 private:
  void separate() {
    if (needs_comma_) out_ += ',';
    needs_comma_ = true;
  }
  JsonWriter& begin(char brace) {
    separate();
    out_ += brace;
    needs_comma_ = false;
    return *this;
  }
  JsonWriter& end(char brace) {
    out_ += brace;
    needs_comma_ = true;
    return *this;
  }

  std::string out_;
  bool needs_comma_ = false;
};

CACHALOT_END
