// An allocation as another process may open it: see CachingAllocator::share and open_shared.
#pragma once

#include "cachalot/require_cpp17.h"

#include <cstddef>
#include <cstdint>
#include <vector>

#include "cachalot/device.h"

namespace cachalot {

// Over heap:segments it is the segment of cudaMalloc that holds the allocation. Over the page heap it is the handles behind
// the allocation: who opens it maps them whole, one behind the other.
struct SharedMemory {
  struct Handle {
    ShareableHandle shared;
    std::size_t bytes = 0;  // of the whole handle; a multiple of the device's page
    std::uint32_t number =
        0;  // of the export: the descriptor of a handle that is gone may come again, the number does not
  };
  std::vector<Handle> handles;  // in the order of addresses; empty: it is `segment`
  IpcHandle segment;
  std::size_t offset = 0;  // from the start of the segment, or of the first handle, to the allocation
  std::size_t bytes = 0;   // of the allocation
};

}  // namespace cachalot
