// Positions of bits. std::countr_zero and its kin define the result for 0, which costs a test and a move on processors
// without the newer instructions; here the word must have a bit set.
#pragma once

#include <cstddef>
#include <cstdint>

namespace cachalot {

inline std::size_t lowest_bit(std::uint64_t word) { return static_cast<std::size_t>(__builtin_ctzll(word)); }
inline std::size_t highest_bit(std::uint64_t word) { return static_cast<std::size_t>(63 ^ __builtin_clzll(word)); }

}  // namespace cachalot
