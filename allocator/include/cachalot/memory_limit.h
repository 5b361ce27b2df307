/// @file
/// Upper bounds on the memory that an allocator holds, as programs write them.
#pragma once

#include "cachalot/require_cpp17.h"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <string>
#include <string_view>

CACHALOT_BEGIN_API

/// A MemoryLimit is a bound on the bytes that an allocator holds from a device:
///
///     "20GiB"      so many bytes (512MiB, 24GB, 1073741824)
///     "80%"        a part of the device's total memory, above 0 and at most 100 percent
///     "free"       all that is free on the device when the bound is set, and what is held by then
///     "free-2GiB"  the same, less 2 GiB that stay free for others
///     "none"       no bound
struct MemoryLimit {
  static constexpr std::size_t kNone =
      std::numeric_limits<std::size_t>::max();  ///< in_bytes without a bound

  /// The quantities that a bound is measured from.
  enum class Base : std::uint8_t {
    none,   ///< there is no bound
    bytes,  ///< 0
    total,  ///< the device's total memory
    free,   ///< the memory that is free on the device, and the memory held already
  };
  Base base = Base::none;  ///< the base of the bound
  double percent = 0;      ///< of the total, with Base::total
  std::size_t bytes = 0;   ///< the bound with Base::bytes; with Base::free, what is left to others

  /// Returns the bound that `text` names, in a form from above. Spaces are ignored.
  /// Throws InvalidArgument, which names the text and the rule.
  static MemoryLimit parse(std::string_view text);
  /// Returns the bound of `bytes` bytes.
  static MemoryLimit of_bytes(std::size_t bytes) { return {Base::bytes, 0, bytes}; }

  /// Returns the bound in bytes, or kNone, on a device with `total_bytes` in total, of which
  /// `free_bytes` are free and `held_bytes` are held.
  std::size_t in_bytes(std::size_t total_bytes, std::size_t free_bytes,
                       std::size_t held_bytes) const;
};

/// Compares all members.
inline bool operator==(const MemoryLimit& a, const MemoryLimit& b) {
  return a.base == b.base && a.percent == b.percent && a.bytes == b.bytes;
}
/// Compares all members.
inline bool operator!=(const MemoryLimit& a, const MemoryLimit& b) { return !(a == b); }

/// Returns a text that MemoryLimit::parse reads as the same bound.
std::string to_string(const MemoryLimit& limit);

/// A SoftLimitReport describes how an allocator came to hold more than its soft limit.
struct SoftLimitReport {
  int device = 0;              ///< index of the device
  std::size_t held_bytes = 0;  ///< bytes held from the device, those of the allocation included
  std::size_t soft_limit_bytes = 0;  ///< the soft limit
};

/// A SoftLimitCallback is called when the memory that an allocator holds comes to exceed its soft
/// limit: once, until held memory has been at or below the soft limit again. It is called on the
/// thread whose call made the allocator hold more, after the memory was allocated and before the
/// call returns, with none of the allocator's locks held: it may call the allocator, to free or to
/// trim. If it throws, that call frees its memory and throws the same.
using SoftLimitCallback = std::function<void(const SoftLimitReport&)>;

CACHALOT_END_API
