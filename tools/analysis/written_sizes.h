// Sizes and numbers in the text of a message without its white space: "79.15GiB", "25,600,000bytes".
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>
#include <utility>

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

// Returns the number times 1024 for each step, at most what 64 bits hold.
std::uint64_t bytes_of(double number, int steps);

// Reads two sizes with `between` between them: "21.95G of 15.48G", "5.60/23.64GiB". The first may lack its unit, which is the second's.
std::optional<std::pair<std::uint64_t, std::uint64_t>> sizes_at(std::string_view text, std::string_view between);

// Returns the bytes of a tensor as TensorFlow tells it, by shape and type: "with shape[16,112,112,147] and type float", without white
// space.
std::optional<std::uint64_t> bytes_of_shape(std::string_view text);

}  // namespace cachalot::tools
