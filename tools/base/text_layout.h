// Text for people and programs: labels with values, paragraphs, numbers with their nouns, questions, colours, JSON.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/suggestions.h"

namespace cachalot::tools {

// Returns the first items, `most` of them or all.
template <typename Item>
std::span<const Item> first_of(const std::vector<Item>& items, std::size_t most) {
  return std::span(items).first(std::min(most, items.size()));
}

inline constexpr std::size_t kTextWidth = 100;  // of help and reports

// Returns "  label        value\n", the label padded to `width`.
std::string labelled_line(std::string_view label, std::string_view value, std::size_t width = 24);

// Returns the text in lines of at most kTextWidth columns, each ended by a newline; all but the first begin with `indent`
// spaces, which the caller has written for the first. Single newlines in the text are spaces; empty lines stay.
std::string wrapped(std::string_view text, std::size_t indent);

// Returns "once", "twice", "3 times".
std::string times_text(std::uint64_t count);

// Returns "12.3 %" of a part of 1.
std::string percent_text(double part);

// Returns "12,345".
std::string with_commas(std::uint64_t number);

// Returns "; did you mean 'simulate'?", which ends a complaint about a word, or "" where no known word is near.
template <typename Words>
std::string question_about(std::string_view word, const Words& known) {
  const std::string question = did_you_mean(word, std::vector<std::string_view>(known.begin(), known.end()));
  return question.empty() ? "" : "; " + question;
}

// Adds a character to a text in UTF-8.
void append_utf8(std::string& text, std::uint32_t code);

inline bool is_digit(char c) { return c >= '0' && c <= '9'; }

// Colours for terminals, and plain text for everything else.

// Returns whether text on a file descriptor gets colours. `when` is "always", "never" or "auto": a terminal has them,
// unless NO_COLOR is set and not empty, or TERM is unset, empty or "dumb".
bool wants_color(std::string_view when, int descriptor);

// Puts terminals' colour codes around text; a plain style returns the text as it is. Pad text before it is coloured.
class Style {
 public:
  Style() = default;  // plain
  explicit Style(bool is_colored) : is_colored_(is_colored) {}

  std::string bold(std::string_view text) const { return colored("1", text); }
  std::string good(std::string_view text) const { return colored("32", text); }
  std::string bad(std::string_view text) const { return colored("1;31", text); }
  std::string faint(std::string_view text) const { return colored("2", text); }

 private:
  std::string colored(std::string_view code, std::string_view text) const;

  bool is_colored_ = false;
};

// The styles of the two streams that a command writes to.
struct Styles {
  Style out;
  Style err;
};

// Returns a JSON value as text, of one line. Users' texts, paths and names of functions need not be UTF-8, JSON must: what is
// not is replaced.
std::string text_of(const nlohmann::ordered_json& json);

template <typename Value, typename Json = nlohmann::ordered_json>
Json or_null(const std::optional<Value>& value) {
  return value ? Json(*value) : Json(nullptr);
}

}  // namespace cachalot::tools
