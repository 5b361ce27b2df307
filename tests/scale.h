// The amount of work of the long random tests, multiplied by CACHALOT_TEST_SCALE, and their seeds: CACHALOT_TEST_SEED
// in place of their own seeds.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <limits>
#include <stdexcept>
#include <string_view>
#include <system_error>

namespace cachalot {

// Returns the number in an environment variable, `otherwise` if it is not set. Throws std::invalid_argument unless it
// is a number from 0 to `most`.
template <typename Number>
Number number_from_environment(const char* name, Number most, Number otherwise) {
  const char* const variable = std::getenv(name);
  if (variable == nullptr) return otherwise;
  const std::string_view text = variable;
  Number number{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  const bool is_number = error == std::errc{} && end == text.data() + text.size();
  if (is_number && number >= 0 && number <= most) return number;
  throw std::invalid_argument(fmt::format("{}: '{:.60}' is not a number from 0 to {}", name, text, most));
}

inline double test_scale() {
  constexpr double kMost = 100'000;  // ten thousand operations times it are an int
  return number_from_environment("CACHALOT_TEST_SCALE", kMost, 1.0);
}

// `count` times the scale; 1 at least.
inline std::size_t scaled(std::size_t count) {
  return std::max<std::size_t>(1, static_cast<std::size_t>(static_cast<double>(count) * test_scale()));
}

inline std::uint64_t seed_or(std::uint64_t fixed) {
  return number_from_environment("CACHALOT_TEST_SEED", std::numeric_limits<std::uint64_t>::max(), fixed);
}

}  // namespace cachalot
