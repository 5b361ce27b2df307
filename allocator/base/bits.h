// Bits, powers of two, choices without a branch, and the pause of a loop that waits.
//
// std::countr_zero and its kin define the result for 0, which costs a test and a move on processors
// without the newer instructions; here the word must have a bit set.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>

#include "cachalot/version.h"

CACHALOT_BEGIN

inline std::size_t lowest_bit(std::uint64_t word) { return static_cast<std::size_t>(__builtin_ctzll(word)); }
inline std::size_t highest_bit(std::uint64_t word) { return static_cast<std::size_t>(63 ^ __builtin_clzll(word)); }

// `condition` as a number in a register: the compiler does not see how it was made, so it cannot make a branch of each of
// its parts. For conditions that real programs make true and false at random: a branch mispredicted every second time
// costs ten times the arithmetic.
inline bool as_number(bool condition) {
  asm("" : "+r"(condition));
  return condition;
}

// condition ? a : b, likewise.
template <typename T>
T* choose(bool condition, T* a, T* b) {
  std::uintptr_t mask = -std::uintptr_t{condition};
  asm("" : "+r"(mask));
  const auto from = reinterpret_cast<std::uintptr_t>(b);
  return reinterpret_cast<T*>(from ^ ((reinterpret_cast<std::uintptr_t>(a) ^ from) & mask));
}

// Makes the processor wait some tens of cycles, as a loop that waits for another thread should. On Arm that is isb, not yield,
// which most processors execute as no instruction at all.
inline void pause_processor() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("isb" ::: "memory");
#endif
}

// The lesser of two, likewise.
inline std::uint64_t lesser(std::uint64_t a, std::uint64_t b) {
#if defined(__x86_64__)
  asm("cmpq %1, %0\n\tcmovaq %1, %0" : "+r"(a) : "r"(b) : "cc");
  return a;
#else
  return a < b ? a : b;
#endif
}

// A size that is a power of two: multiples of it are found by shifts, where a division would take tens of cycles.
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
