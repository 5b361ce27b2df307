#include "tools/history/traceback.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <system_error>

namespace cachalot::tools {
namespace {

constexpr std::string_view kFile = "File \"";
constexpr std::string_view kLine = "\", line ";
constexpr std::string_view kFunction = ", in ";

}  // namespace

TracebackCall call_of_traceback(std::string_view text) {
  text = text.substr(0, text.find('\n'));
  text.remove_prefix(std::min(text.find_first_not_of(' '), text.size()));
  const TracebackCall other{.file = "", .function = text};
  const std::size_t line = text.rfind(kLine);
  if (!text.starts_with(kFile) || line == std::string_view::npos) return other;
  TracebackCall call{.file = text.substr(kFile.size(), line - kFile.size()), .function = ""};
  const char* const number = text.data() + line + kLine.size();
  const auto [end, error] = std::from_chars(number, text.data() + text.size(), call.line);
  const std::string_view rest = text.substr(static_cast<std::size_t>(end - text.data()));
  if (error != std::errc() || !rest.starts_with(kFunction)) return other;
  call.function = rest.substr(kFunction.size());
  return call;
}

std::string traceback_text(const TracebackCall& call) {
  return fmt::format("  {}{}{}{}{}{}\n", kFile, call.file, kLine, call.line, kFunction, call.function);
}

}  // namespace cachalot::tools
