// Which bin holds which sizes, and which bins hold blocks.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "base/bits.h"
#include "base/check.h"

CACHALOT_BEGIN

// SizeBins divides sizes into bins: 64 an octave. Below 64 KiB a bin holds a single size.
struct SizeBins {
  static constexpr std::size_t kMaxBytes = std::size_t{1} << 40;  // sizes are smaller
  static constexpr std::size_t kPerGroup = 64;                    // a group is an octave, but for the widest bins
  static constexpr std::size_t kGroups = 64;
  static constexpr std::size_t kSmallestOctave = 9;                // 512 B
  static constexpr std::size_t kFirstOfManySizes = 7 * kPerGroup;  // 64 KiB: below, a bin is not wider than 512 B
  // From here on bins are 512 MiB wide, so that sizes within one differ in 20 bits (of 512 B).
  static constexpr std::size_t kWideBytes = std::size_t{1} << 36;
  static constexpr std::size_t kWidestBin = std::size_t{1} << 29;
  static constexpr std::size_t kFirstWide = (36 - kSmallestOctave) * kPerGroup;
  static_assert(kFirstWide + (kMaxBytes - kWideBytes) / kWidestBin <= kGroups * kPerGroup);

  // Returns group x kPerGroup + bin: the octave, and the six bits below the leading one.
  static std::size_t slot_for(std::size_t bytes) {
    if (bytes >= kWideBytes) [[unlikely]]
      return kFirstWide + (bytes - kWideBytes) / kWidestBin;
    const std::size_t octave = highest_bit(bytes);
    return octave * kPerGroup + (bytes >> (octave - 6)) - (kSmallestOctave + 1) * kPerGroup;
  }
};

// BinBitmap finds the bins that hold blocks, by two levels of bits: one a group, one a bin.
// Invariant: a group's bit is set exactly if one of its bins' is. Not thread-safe.
class BinBitmap {
 public:
  bool empty() const { return groups_ == 0; }
  bool has(std::size_t slot) const {
    return (bins_[slot / SizeBins::kPerGroup] >> slot % SizeBins::kPerGroup & 1) != 0;
  }
  // The bin holds blocks.
  CACHALOT_FAST_PATH void add(std::size_t slot) {
    const std::size_t group = slot / SizeBins::kPerGroup;
    bins_[group] |= std::uint64_t{1} << slot % SizeBins::kPerGroup;
    groups_ |= std::uint64_t{1} << group;
  }
  // The bin holds blocks, or none. No branch: whether a bin or group is empty cannot be predicted.
  CACHALOT_FAST_PATH void mark(std::size_t slot, bool occupied) {
    const std::size_t group = slot / SizeBins::kPerGroup;
    std::uint64_t& bins = bins_[group];
    bins = with_bit(bins, slot % SizeBins::kPerGroup, occupied);
    groups_ = with_bit(groups_, group, bins != 0);
  }

  // One bit for each group, and for each bin of a group.
  std::uint64_t groups() const { return groups_; }
  std::uint64_t bins(std::size_t group) const { return bins_[group]; }
  // Those of larger sizes.
  std::uint64_t groups_behind(std::size_t group) const { return groups_ >> group >> 1 << group << 1; }

 private:
  static std::uint64_t with_bit(std::uint64_t word, std::size_t bit, bool value) {
    return (word & ~(std::uint64_t{1} << bit)) | std::uint64_t{value} << bit;
  }

  std::uint64_t groups_ = 0;
  std::array<std::uint64_t, SizeBins::kGroups> bins_{};  // by group
};

CACHALOT_END
