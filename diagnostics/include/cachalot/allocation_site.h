/// @file
/// The places in a program that allocate.
#pragma once

#include "cachalot/require_cpp17.h"

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "cachalot/call_stack.h"
#include "cachalot/device.h"

CACHALOT_BEGIN_API

/// An AllocationSite is a call stack that allocates, with the live blocks that came from it.
/// LeakDetector and AllocationTrack report it. Bytes are those of blocks, as memory_allocated
/// counts.
struct AllocationSite {
  CallStack stack;             ///< empty: unknown, as for blocks restored by a checkpoint of a pool
  std::size_t live_bytes = 0;  ///< of the live blocks
  std::size_t live_blocks = 0;         ///< number of live blocks
  std::uint64_t allocated_blocks = 0;  ///< blocks allocated since the site was first seen
  /// Calls of LeakDetector::step since the oldest live block was allocated.
  std::uint64_t oldest_iterations = 0;
  double oldest_seconds = 0;  ///< seconds since the oldest live block was allocated
  /// The addresses of live blocks, the youngest first; at most kSomeAddresses.
  std::vector<Address> some_addresses;

  static constexpr std::size_t kSomeAddresses = 1024;  ///< the most addresses that are listed
};

/// Returns "1536 bytes in 3 blocks, the oldest 12 iterations (0.4 s) old", then a line for each
/// frame of the stack.
std::string to_string(const AllocationSite& site);
/// Returns a JSON object with the names of the members; the stack is an array of frames.
std::string to_json(const AllocationSite& site);

CACHALOT_END_API
