// Programs written at random: the same seed gives the same program.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

#include "tests/programs/program.h"

namespace cachalot {

// The properties of a program for the reference heap.
struct Taste {
  std::array<std::size_t, 2> device_mib = {256, 192};
  std::string options;
  bool changes_options = false;
  bool uses_pools = false;
  bool captures = false;
  bool donates = false;
  double smallest_bytes = 1;
  std::size_t largest_bytes = std::size_t{48} << 20;  // sizes are log-uniform from smallest_bytes to this
  std::size_t most_live = 120;
};

Program random_program(std::uint64_t seed, std::size_t operations, const Taste& taste);

// The properties of a program for a Player: every kind of operation.
struct PlayTaste {
  std::array<std::size_t, 2> device_mib = {96, 48};
  std::string options;
  double largest_bytes = double{1 << 25};
  std::size_t most_live = 100;
  bool captures = true;
  double placed = 0.2;  // the part of the allocations that are aligned, contiguous or both
  double faults = 0;    // the part of the operations that make a later call fail
};

Program random_play(std::uint64_t seed, std::size_t operations, const PlayTaste& taste);

}  // namespace cachalot
