// PyTorch's allocation policy: its numbers and its rules as pure functions, without state and without locks.
// Source: c10/core/AllocatorConfig.h and c10/cuda/CUDACachingAllocator.cpp of PyTorch 2.11; each item names its home.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>

#include "base/bytes.h"
#include "cachalot/device.h"
#include "cachalot/options.h"

CACHALOT_BEGIN

// c10/core/AllocatorConfig.h, PyTorch's names in brackets. Bytes.
inline constexpr std::size_t kMinBlockSize = 512;              // [kMinBlockSize] block sizes are multiples of it
inline constexpr std::size_t kSmallSize = kMiB;                // [kSmallSize] largest block of the small pool
inline constexpr std::size_t kSmallBuffer = 2 * kMiB;          // [kSmallBuffer] segments of the small pool
inline constexpr std::size_t kLargeBuffer = 20 * kMiB;         // [kLargeBuffer] default large_segment_size
inline constexpr std::size_t kMinLargeAlloc = 10 * kMiB;       // [kMinLargeAlloc] from here on a segment of its own …
inline constexpr std::size_t kRoundLarge = 2 * kMiB;           // [kRoundLarge] … rounded up to a multiple of this
inline constexpr std::size_t kMinLargeRemainder = kSmallSize;  // [should_split] large blocks keep smaller remainders

// True when some request is not simply rounded to kMinBlockSize. Compute it once; while it is false round_to_block is
// all there is to do.
constexpr bool rounds_by_divisions(const Options& options) {
  return std::ranges::any_of(options.roundup_power2_divisions, [](std::size_t divisions) { return divisions > 1; });
}

// `bytes` > 0, less than 2^63, as in every function here that takes a request.
constexpr std::size_t round_to_block(std::size_t bytes) { return round_up(bytes, kMinBlockSize); }

// [AcceleratorAllocatorConfig::roundup_power2_divisions] The interval `bytes` is in, of Options::kRoundupSlots.
constexpr std::size_t roundup_slot(std::size_t bytes) {
  constexpr int kFirstInterval = std::bit_width(kMiB);
  constexpr int kLastSlot = static_cast<int>(Options::kRoundupSlots) - 1;
  return static_cast<std::size_t>(std::clamp(static_cast<int>(std::bit_width(bytes)) - kFirstInterval, 0, kLastSlot));
}

// [roundup_power2_next_division] Rounds up to the next of `divisions` (a power of two, at least 2) equal steps between
// the powers of two around `bytes`.
constexpr std::size_t round_to_division(std::size_t bytes, std::size_t divisions) {
  const std::size_t floor = std::bit_floor(bytes);
  if (bytes == floor) return bytes;
  const std::size_t step = floor >> std::countr_zero(divisions);
  return step == 0 ? floor << 1 : round_up(bytes, step);
}

// [round_size] where divisions are in use.
constexpr std::size_t round_power2_divisions(std::size_t bytes, const Options& options) {
  if (bytes < kMinBlockSize) return kMinBlockSize;
  const std::size_t divisions = options.roundup_power2_divisions[roundup_slot(bytes)];
  // The product wraps for 2^55 divisions and more, in PyTorch too; such a request becomes a power of two.
  if (divisions > 1 && bytes > kMinBlockSize * divisions) return round_to_division(bytes, divisions);
  return round_to_block(bytes);
}

// [round_size] The size of the block that serves a request, if it can be split off.
constexpr std::size_t round_size(std::size_t bytes, const Options& options) {
  return rounds_by_divisions(options) ? round_power2_divisions(bytes, options) : round_to_block(bytes);
}

// [get_pool] Decided by the rounded size: 1 MiB exactly is small, 1 MiB + 1 is large.
constexpr PoolKind pool_kind(std::size_t rounded) { return rounded <= kSmallSize ? PoolKind::small : PoolKind::large; }

// [get_allocation_size] What is asked of the device when no free block serves a request of `rounded` bytes.
constexpr std::size_t segment_size(std::size_t rounded, std::size_t large_segment_size) {
  if (rounded <= kSmallSize) return kSmallBuffer;
  if (rounded < kMinLargeAlloc) return large_segment_size;
  return round_up(rounded, kRoundLarge);
}

// The options that keep large blocks whole. Without them every block may be split.
struct SplitRules {
  constexpr SplitRules() = default;
  constexpr SplitRules(const Options& options)  // NOLINT(google-explicit-constructor): they are a part of the options
      : max_split_size(options.max_split_size), max_non_split_rounding(options.max_non_split_rounding) {}

  std::size_t max_split_size = Options::kUnlimited;
  std::size_t max_non_split_rounding = Options::kUnlimited;
};

// Blocks and segments that max_split_size keeps whole and counts as oversize.
constexpr bool is_oversize(std::size_t bytes, const SplitRules& rules) { return bytes >= rules.max_split_size; }

// [get_free_block] Whether the best-fitting free block (block >= rounded) may serve the request. If not, the request
// is served by no free block at all: PyTorch does not try the next one.
constexpr bool may_use(std::size_t block, std::size_t rounded, const SplitRules& rules) {
  if (!is_oversize(rounded, rules)) return !is_oversize(block, rules);
  return block - rounded < rules.max_non_split_rounding;
}

// [should_split] Whether the part of a block (block >= rounded) that the request leaves becomes a free block. (Pools
// that never split are the caller's business.)
constexpr bool should_split(PoolKind kind, std::size_t block, std::size_t rounded, const SplitRules& rules) {
  const bool large = kind == PoolKind::large;
  // No branch on the pool: in real programs it cannot be predicted.
  const std::size_t smallest_remainder = kMinBlockSize + std::size_t{large} * (kMinLargeRemainder + 1 - kMinBlockSize);
  const bool keep_whole = static_cast<int>(large) & static_cast<int>(is_oversize(rounded, rules));
  return static_cast<int>(block - rounded >= smallest_remainder) & static_cast<int>(!keep_whole);
}

CACHALOT_END
