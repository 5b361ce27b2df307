#include "tools/base/text_layout.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <nlohmann/json.hpp>

#include "base/environment.h"

namespace cachalot::tools {
namespace {

// One paragraph's words, broken at kTextWidth; `column` is where the first line begins.
std::string wrapped_paragraph(std::string_view words, std::size_t indent) {
  std::string text;
  std::size_t column = indent;
  bool at_start = true;
  while (!words.empty()) {
    const std::size_t end = std::min(words.find_first_of(" \n"), words.size());
    const std::string_view word = words.substr(0, end);
    words.remove_prefix(std::min(end + 1, words.size()));
    if (word.empty()) continue;
    if (!at_start && column + 1 + word.size() > kTextWidth) {
      text += '\n' + std::string(indent, ' ');
      column = indent;
      at_start = true;
    }
    if (!at_start) text += ' ';
    column += word.size() + (at_start ? 0 : 1);
    text += word;
    at_start = false;
  }
  return text + '\n';
}

}  // namespace

std::string labelled_line(std::string_view label, std::string_view value, std::size_t width) {
  return fmt::format("  {:<{}} {}\n", label, width, value);
}

std::string wrapped(std::string_view text, std::size_t indent) {
  std::string lines;
  while (true) {
    const std::size_t end = text.find("\n\n");
    lines += wrapped_paragraph(text.substr(0, end), indent);
    if (end == std::string_view::npos) return lines;
    lines += '\n' + std::string(indent, ' ');
    text.remove_prefix(end + 2);
  }
}

std::string times_text(std::uint64_t count) {
  if (count == 1) return "once";
  if (count == 2) return "twice";
  return fmt::format("{} times", count);
}

std::string percent_text(double part) { return fmt::format("{:.1f} %", 100 * part); }

std::string with_commas(std::uint64_t number) {
  std::string text = std::to_string(number);
  for (std::size_t at = text.size(); at > 3;) text.insert(at -= 3, ",");
  return text;
}

namespace {

std::string_view variable(const char* name) { return environment(name).value_or(""); }

}  // namespace

void append_utf8(std::string& text, std::uint32_t code) {
  const auto add = [&](std::uint32_t byte) { text.push_back(static_cast<char>(byte)); };
  if (code < 0x80) return add(code);
  if (code < 0x800) {
    add(0xc0 | code >> 6);
  } else {
    if (code < 0x10000) {
      add(0xe0 | code >> 12);
    } else {
      add(0xf0 | (code >> 18 & 7));
      add(0x80 | (code >> 12 & 0x3f));
    }
    add(0x80 | (code >> 6 & 0x3f));
  }
  add(0x80 | (code & 0x3f));
}

bool wants_color(std::string_view when, int descriptor) {
  if (when != "auto") return when == "always";
  const std::string_view terminal = variable("TERM");
  return variable("NO_COLOR").empty() && !terminal.empty() && terminal != "dumb" && isatty(descriptor) == 1;
}

std::string Style::colored(std::string_view code, std::string_view text) const {
  if (!is_colored_ || text.empty()) return std::string(text);
  return fmt::format("\033[{}m{}\033[0m", code, text);
}

std::string text_of(const nlohmann::ordered_json& json) {
  return json.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

}  // namespace cachalot::tools
