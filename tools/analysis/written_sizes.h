// Sizes and numbers in the text of a message without its white space: "79.15GiB", "25,600,000bytes".
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace cachalot::tools {

struct WrittenSize {
  std::uint64_t bytes = 0;
  std::size_t length = 0;  // of its text
  bool has_unit = false;
};

// Reads the size that the text begins with; bytes, where it has no unit.
std::optional<WrittenSize> size_at(std::string_view text);

// Reads the size, with its unit, that the text ends with.
std::optional<std::uint64_t> size_before(std::string_view text);

// Reads the whole number that the text begins with.
std::optional<std::uint64_t> integer_at(std::string_view text);

// Returns the number times 1024 for each step, at most 10^18.
std::uint64_t bytes_of(double number, int steps);

}  // namespace cachalot::tools
