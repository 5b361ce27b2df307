// What it came to that live memory was moved together.
#pragma once

#include "cachalot/require_cpp17.h"

#include <cstddef>

namespace cachalot {

struct CompactReport {
  std::size_t blocks_moved = 0;
  std::size_t bytes_moved = 0;
  std::size_t bytes_freed = 0;  // given back: by a TensorPool to its allocator, by a RelocatableHeap to the device
};

}  // namespace cachalot
