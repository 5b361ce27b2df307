// Text of a file, to be shown in a message: on one line, printable, not too long.
#pragma once

#include <fmt/format.h>

#include <cstddef>
#include <string>
#include <string_view>

namespace cachalot::tools {

// In quotes and in ASCII: a value.
struct Quoted {
  std::string_view text;
};

// Prints text without quotes, with room for a path and with UTF-8: no control character reaches a terminal.
struct Printable {
  std::string_view text;
};

inline constexpr std::size_t kShownOfAValue = 60;
inline constexpr std::size_t kShownOfAPath = 300;

// For a text that joins others before it is formatted.
std::string printable(std::string_view text);

// Prints other bytes than those of `is_shown` as \x and two digits.
template <typename Out, typename IsShown>
Out print_escaped(Out out, std::string_view text, std::size_t most, IsShown&& is_shown) {
  for (const char c : text.substr(0, most)) {
    const auto byte = static_cast<unsigned char>(c);
    out = is_shown(byte) ? fmt::format_to(out, "{}", c) : fmt::format_to(out, "\\x{:02x}", byte);
  }
  return fmt::format_to(out, "{}", text.size() > most ? "..." : "");
}

}  // namespace cachalot::tools

template <>
struct fmt::formatter<cachalot::tools::Quoted> {
  constexpr auto parse(format_parse_context& context) { return context.begin(); }

  template <typename Context>
  auto format(const cachalot::tools::Quoted& quoted, Context& context) const {
    const auto is_shown = [](unsigned char byte) { return byte >= 0x20 && byte < 0x7f; };
    auto out = fmt::format_to(context.out(), "'");
    out = cachalot::tools::print_escaped(out, quoted.text, cachalot::tools::kShownOfAValue, is_shown);
    return fmt::format_to(out, "'");
  }
};

template <>
struct fmt::formatter<cachalot::tools::Printable> {
  constexpr auto parse(format_parse_context& context) { return context.begin(); }

  template <typename Context>
  auto format(const cachalot::tools::Printable& printable, Context& context) const {
    const auto is_shown = [](unsigned char byte) { return byte >= 0x20 && byte != 0x7f; };
    return cachalot::tools::print_escaped(context.out(), printable.text, cachalot::tools::kShownOfAPath, is_shown);
  }
};

inline std::string cachalot::tools::printable(std::string_view text) { return fmt::to_string(Printable{text}); }
