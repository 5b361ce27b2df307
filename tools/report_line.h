// A line of a report: its label, then the value in a column.
#pragma once

#include <fmt/format.h>

#include <string>

namespace cachalot::tools {

inline std::string report_line(const char* label, const std::string& value) {
  return fmt::format("  {:<24} {}\n", label, value);
}

}  // namespace cachalot::tools
