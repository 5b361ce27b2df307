// A place in a program that allocates: one call stack, and what lives that came from there.
#pragma once

#include "cachalot/require_cpp17.h"

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "cachalot/call_stack.h"
#include "cachalot/device.h"

namespace cachalot {

struct AllocationSite {
  CallStack stack;             // empty: nobody knows, as for blocks that a checkpoint of a pool brought back
  std::size_t live_bytes = 0;  // of the blocks that serve the allocations, as memory_allocated counts them
  std::size_t live_blocks = 0;
  std::uint64_t allocated_blocks = 0;   // as long as the site is known
  std::uint64_t oldest_iterations = 0;  // of the oldest live block: calls of step() since it was allocated
  double oldest_seconds = 0;            // the same by the clock
  std::vector<Address> some_addresses;  // of live blocks, the youngest; at most kSomeAddresses

  static constexpr std::size_t kSomeAddresses = 1024;
};

// "1536 bytes in 3 blocks, the oldest 12 iterations (0.4 s) old", then its stack, a line a frame.
std::string to_string(const AllocationSite& site);
std::string to_json(const AllocationSite& site);

}  // namespace cachalot
