// The byte that belongs at an address, given a seed. The one definition, for kernels and for the host.
#pragma once

#include <cstdint>

#include "cachalot/host_device.h"

CACHALOT_BEGIN

// The eight bytes at address 8 * `index`, little-endian: a mixed hash of both, by the finalizer of splitmix64.
CACHALOT_HOST_DEVICE constexpr std::uint64_t pattern_word(std::uint64_t index, std::uint64_t seed) {
  std::uint64_t x = (index ^ (seed * 0xd1b54a32d192ed03u)) + 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

CACHALOT_HOST_DEVICE constexpr unsigned char pattern_byte(std::uint64_t address, std::uint64_t seed) {
  return static_cast<unsigned char>(pattern_word(address / 8, seed) >> (8 * (address % 8)));
}

CACHALOT_END
