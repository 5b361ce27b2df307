// The text of options, `key:value,key:[a:b,c:d]`, as settings: PyTorch's grammar, whose separators PyTorch does not
// check.
#pragma once

#include <charconv>
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include "cachalot/version.h"

CACHALOT_BEGIN

// One entry of roundup_power2_divisions' list form, as text.
struct OptionInterval {
  std::string boundary;
  std::string divisions;
};

// One `key:value` of the text: a single token or a list.
struct OptionSetting {
  std::string key;
  std::string value;  // of a list: its text, for messages
  bool is_list = false;
  std::vector<OptionInterval> intervals;
};

// A Dialect says what the text may have beside PyTorch's grammar.
struct Dialect {
  std::string_view name;         // of the text, for messages
  std::size_t longest_token;     // no key and no value is near as long; messages repeat them
  std::string_view quotes = "";  // a value between two of one of these is what stands there, a doubled one being one
};
inline constexpr Dialect kAllocatorOptions{"allocator options", 256};

// Returns the settings in the order of the text. Throws InvalidArgument for an invalid text.
std::vector<OptionSetting> read_settings(std::string_view text, const Dialect& dialect = kAllocatorOptions);

// Returns true if the text, which is known to be settings, has one of this key.
bool names_option(std::string_view text, std::string_view key);

// Throws InvalidArgument: the setting's value breaks the rule.
[[noreturn]] void refuse(const OptionSetting& setting, const std::string& rule);

// The number that all of `text` is, or nothing.
template <typename Number>
std::optional<Number> number_in(std::string_view text) {
  Number number{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc{} || end != text.data() + text.size()) return std::nullopt;
  return number;
}

std::string without_spaces(std::string_view text);

// The text of an option in a message: not too long, whatever was given.
inline std::string shown(std::string_view text) {
  constexpr std::size_t kMost = 300;  // of a list that is longer
  return std::string(text.substr(0, kMost)) + (text.size() > kMost ? "..." : "");
}

CACHALOT_END
