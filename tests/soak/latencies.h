// The durations of calls, in bins of a sixteenth of an octave: any number of them in 8 KiB.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>

namespace cachalot {

class Latencies {
 public:
  void add(std::uint64_t ns) {
    ++bins_[bin_of(ns)];
    ++count_;
    longest_ = std::max(longest_, ns);
  }
  void add(const Latencies& other) {
    for (std::size_t i = 0; i < bins_.size(); ++i) bins_[i] += other.bins_[i];
    count_ += other.count_;
    longest_ = std::max(longest_, other.longest_);
  }
  std::uint64_t count() const { return count_; }
  std::uint64_t longest() const { return longest_; }
  // Within 7 %; `share` from 0 to 1.
  std::uint64_t percentile(double share) const {
    std::uint64_t left = static_cast<std::uint64_t>(share * static_cast<double>(count_));
    for (std::size_t i = 0; i < bins_.size(); ++i) {
      if (left < bins_[i]) return std::min(least_of(i), longest_);
      left -= bins_[i];
    }
    return longest_;
  }

 private:
  static constexpr unsigned kPartBits = 4;

  static std::size_t bin_of(std::uint64_t ns) {
    if (ns < 1u << kPartBits) return static_cast<std::size_t>(ns);
    const unsigned octave = static_cast<unsigned>(std::bit_width(ns)) - 1 - kPartBits;
    return ((std::size_t{octave} + 1) << kPartBits) + ((ns >> octave) & ((1u << kPartBits) - 1));
  }
  static std::uint64_t least_of(std::size_t bin) {
    if (bin < 1u << kPartBits) return bin;
    const std::size_t octave = (bin >> kPartBits) - 1;
    return ((std::uint64_t{1} << kPartBits) + (bin & ((1u << kPartBits) - 1))) << octave;
  }

  std::array<std::uint64_t, (64 - kPartBits + 1) << kPartBits> bins_{};
  std::uint64_t count_ = 0;
  std::uint64_t longest_ = 0;
};

}  // namespace cachalot
