// Colours for terminals, and plain text for everything else.
#pragma once

#include <string>
#include <string_view>

namespace cachalot::tools {

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

}  // namespace cachalot::tools
