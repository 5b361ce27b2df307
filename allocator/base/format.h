// formatted("{} of {:#x}", count, address) makes text of values, as std::format does.
//
// The library has this small part of std::format of its own: GCC 12 has no <format>, and a library that others link must not
// make them install one. Programs in tools/ and tests/ use fmt.
//
// A placeholder is one of
//   {}      any value
//   {:#x}   an integer, hexadecimal behind 0x
//   {:06}   an integer of at least 6 digits, zeros in front
//   {:.2f}  a number with 2 digits behind the point
//   {:.60}  at most 60 bytes of a text
// and {{ and }} are braces. A pattern that does not fit its arguments does not compile.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <variant>

#include "cachalot/version.h"

CACHALOT_BEGIN

// A FormatValue is one argument of formatted. It refers to the text or pointer that it was made of.
class FormatValue {
 public:
  using Value = std::variant<bool, std::int64_t, std::uint64_t, double, std::string_view, const void*>;

  // NOLINTBEGIN(google-explicit-constructor): every argument becomes one
  FormatValue(bool value) : value_(value) {}
  FormatValue(const char& value) : value_(std::string_view(&value, 1)) {}
  FormatValue(std::signed_integral auto value) : value_(std::int64_t{value}) {}
  FormatValue(std::unsigned_integral auto value) : value_(std::uint64_t{value}) {}
  FormatValue(std::floating_point auto value) : value_(double{value}) {}
  FormatValue(std::string_view value) : value_(value) {}
  FormatValue(const std::string& value) : value_(std::string_view{value}) {}
  FormatValue(const char* value) : value_(std::string_view{value}) {}
  FormatValue(const void* value) : value_(value) {}
  // NOLINTEND(google-explicit-constructor)

  const Value& value() const { return value_; }

 private:
  Value value_;
};

// The rules of placeholders, for the check at compile time and for the work at run time.
struct Placeholder {
  enum class Form : std::uint8_t { plain, hexadecimal, padded, fixed, cut };
  Form form = Form::plain;
  std::size_t number = 0;  // digits or bytes

  // Reads the text between the braces. Throws, which does not compile, if it is not a placeholder.
  static constexpr Placeholder read(std::string_view spec);
  template <typename Argument>
  static constexpr bool fits(Form form);
};

constexpr Placeholder Placeholder::read(std::string_view spec) {
  if (spec.empty()) return {};
  if (spec == ":#x") return {Form::hexadecimal};
  Form form = Form::padded;
  std::string_view digits = spec.substr(1);
  if (digits.starts_with('.')) {
    form = digits.ends_with('f') ? Form::fixed : Form::cut;
    digits = digits.substr(1, digits.size() - (form == Form::fixed ? 2 : 1));
  } else if (!digits.starts_with('0')) {
    throw "not a placeholder of base/format.h";
  }
  if (spec.front() != ':' || digits.empty()) throw "not a placeholder of base/format.h";
  std::size_t number = 0;
  for (const char digit : digits) {
    if (digit < '0' || digit > '9') throw "not a placeholder of base/format.h";
    number = number * 10 + static_cast<std::size_t>(digit - '0');
  }
  return {form, number};
}

template <typename Argument>
constexpr bool Placeholder::fits(Form form) {
  constexpr bool kIsInteger = std::integral<Argument> && !std::same_as<Argument, bool> && !std::same_as<Argument, char>;
  switch (form) {
    case Form::plain:
      return true;
    case Form::hexadecimal:
    case Form::padded:
      return kIsInteger;
    case Form::fixed:
      return std::floating_point<Argument>;
    case Form::cut:
      return std::convertible_to<Argument, std::string_view>;
  }
  return false;
}

// Calls text(part) for the plain parts of a pattern and place(placeholder) for its placeholders, in their order.
template <typename Text, typename Place>
constexpr void read_pattern(std::string_view pattern, Text text, Place place) {
  while (!pattern.empty()) {
    const std::size_t at = pattern.find_first_of("{}");
    text(pattern.substr(0, at));
    if (at == std::string_view::npos) return;
    if (pattern.substr(at).starts_with("{{") || pattern.substr(at).starts_with("}}")) {
      text(pattern.substr(at, 1));
      pattern.remove_prefix(at + 2);
      continue;
    }
    const std::size_t end = pattern.find('}', at);
    if (pattern[at] == '}' || end == std::string_view::npos) throw "a brace without its partner";
    place(Placeholder::read(pattern.substr(at + 1, end - at - 1)));
    pattern.remove_prefix(end + 1);
  }
}

// A pattern that fits arguments of these types.
template <typename... Arguments>
class FormatPattern {
 public:
  template <std::convertible_to<std::string_view> Text>
  consteval FormatPattern(const Text& text) : text_(text) {  // NOLINT(google-explicit-constructor)
    // One more than there are arguments, so that none is an array as well.
    constexpr bool (*kFits[])(Placeholder::Form) = {&Placeholder::fits<std::remove_cvref_t<Arguments>>...,
                                                    &Placeholder::fits<void>};
    std::size_t place = 0;
    read_pattern(
        text_, [](std::string_view) {},
        [&](const Placeholder& placeholder) {
          if (place == sizeof...(Arguments)) throw "more placeholders than arguments";
          // NOLINTNEXTLINE(clang-analyzer-core.CallAndMessage): the analyzer does not see that all are initialized
          if (!kFits[place++](placeholder.form)) throw "a placeholder does not fit its argument";
        });
    if (place != sizeof...(Arguments)) throw "more arguments than placeholders";
  }

  std::string_view text() const { return text_; }

 private:
  std::string_view text_;
};

// Appends the text of `pattern`, which must fit the values.
void append_formatted(std::string& out, std::string_view pattern, std::span<const FormatValue> values);

template <typename... Arguments>
std::string formatted(FormatPattern<std::type_identity_t<Arguments>...> pattern, const Arguments&... arguments) {
  std::string out;
  if constexpr (sizeof...(Arguments) == 0) {
    append_formatted(out, pattern.text(), {});
  } else {
    const FormatValue values[] = {FormatValue(arguments)...};
    append_formatted(out, pattern.text(), values);
  }
  return out;
}

// Writes formatted text to standard error, in one call.
template <typename... Arguments>
void print_error(FormatPattern<std::type_identity_t<Arguments>...> pattern, const Arguments&... arguments) {
  std::fputs(formatted<Arguments...>(pattern, arguments...).c_str(), stderr);
}

// Returns the items' texts with `separator` between them.
template <typename Items>
std::string join(const Items& items, std::string_view separator) {
  std::string out;
  for (const auto& item : items) {
    if (!out.empty()) out += separator;
    const FormatValue value(item);
    append_formatted(out, "{}", std::span(&value, 1));
  }
  return out;
}

CACHALOT_END
