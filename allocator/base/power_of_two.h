// A size that is a power of two: multiples of it are found by shifts, where a division would take tens of cycles.
#pragma once

#include <bit>
#include <cstddef>

#include "cachalot/version.h"

CACHALOT_BEGIN

class PowerOfTwo {
 public:
  explicit constexpr PowerOfTwo(std::size_t bytes) : shift_(std::countr_zero(bytes)) {}
  constexpr std::size_t bytes() const { return std::size_t{1} << shift_; }
  constexpr std::size_t whole_in(std::size_t bytes) const { return bytes >> shift_; }
  constexpr std::size_t down(std::size_t bytes) const { return bytes >> shift_ << shift_; }
  // The caller has checked that adding one does not overflow.
  constexpr std::size_t up(std::size_t bytes) const { return down(bytes + this->bytes() - 1); }

 private:
  int shift_;
};

CACHALOT_END
