// Sizes in bytes: units, rounding, and their text forms; counts in words.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "cachalot/version.h"

CACHALOT_BEGIN

inline constexpr std::size_t kKiB = std::size_t{1} << 10;
inline constexpr std::size_t kMiB = std::size_t{1} << 20;
inline constexpr std::size_t kGiB = std::size_t{1} << 30;
inline constexpr std::size_t kCacheLine = 64;

constexpr std::size_t round_down(std::size_t bytes, std::size_t multiple) { return bytes - bytes % multiple; }
// The caller has checked that bytes + multiple does not overflow.
constexpr std::size_t round_up(std::size_t bytes, std::size_t multiple) {
  return round_down(bytes + multiple - 1, multiple);
}

constexpr std::int64_t as_signed(std::size_t bytes) { return static_cast<std::int64_t>(bytes); }
constexpr std::size_t as_size(std::int64_t count) { return static_cast<std::size_t>(count); }

// "512 bytes", "20.00 MiB": as PyTorch prints sizes.
std::string format_bytes(std::size_t bytes);
// "1 block", "2 blocks".
std::string format_count(std::uint64_t count, std::string_view what);
// Returns the bytes of "1024", "512MiB", "24 GB" or "1.5g": every unit counts in steps of 1024. Throws InvalidArgument.
std::size_t parse_bytes(std::string_view text);

// Returns the bytes of the host's memory that vectors hold.
template <typename... Vectors>
std::size_t capacity_bytes(const Vectors&... vectors) {
  return ((vectors.capacity() * sizeof(typename Vectors::value_type)) + ...);
}

CACHALOT_END
