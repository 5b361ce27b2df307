// How much the long random tests do: CACHALOT_TEST_SCALE times what they do without it.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <cstdlib>
#include <stdexcept>
#include <string_view>
#include <system_error>

namespace cachalot {

// 1 where the variable is not set. Throws std::invalid_argument for what is no number from 0 to 100,000.
inline double test_scale() {
  constexpr double kMost = 1e5;  // ten thousand operations times it are an int
  const char* const variable = std::getenv("CACHALOT_TEST_SCALE");
  if (variable == nullptr) return 1;
  const std::string_view text = variable;
  double scale = -1;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), scale);
  const bool is_number = error == std::errc{} && end == text.data() + text.size();
  if (is_number && scale >= 0 && scale <= kMost) return scale;
  throw std::invalid_argument(
      fmt::format("CACHALOT_TEST_SCALE: '{:.60}' is not a number from 0 to {:.0f}", text, kMost));
}

// `count` times the scale; 1 at least.
inline std::size_t scaled(std::size_t count) {
  return std::max<std::size_t>(1, static_cast<std::size_t>(static_cast<double>(count) * test_scale()));
}

}  // namespace cachalot
