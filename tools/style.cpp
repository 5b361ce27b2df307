#include "tools/style.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cstdlib>

namespace cachalot::tools {
namespace {

std::string_view variable(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr ? "" : value;
}

}  // namespace

bool wants_color(std::string_view when, int descriptor) {
  if (when != "auto") return when == "always";
  const std::string_view terminal = variable("TERM");
  return variable("NO_COLOR").empty() && !terminal.empty() && terminal != "dumb" && isatty(descriptor) == 1;
}

std::string Style::colored(std::string_view code, std::string_view text) const {
  if (!is_colored_ || text.empty()) return std::string(text);
  return fmt::format("\033[{}m{}\033[0m", code, text);
}

}  // namespace cachalot::tools
