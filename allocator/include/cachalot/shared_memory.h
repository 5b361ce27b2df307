/// @file
/// The description of an allocation that another process may open.
#pragma once

#include "cachalot/require_cpp17.h"

#include <cstddef>
#include <cstdint>
#include <vector>

#include "cachalot/device.h"

CACHALOT_BEGIN_API

/// A SharedMemory describes an allocation for other processes: CachingAllocator::share makes it,
/// and CachingAllocator::open_shared of another process takes it.
///
/// Over heap:segments it names the segment (the cudaMalloc) that holds the allocation. Over
/// heap:pages it names the handles behind the allocation, which the other process maps whole and
/// one after the other.
struct SharedMemory {
  /// A Handle names one piece of physical memory.
  struct Handle {
    ShareableHandle shared;  ///< the handle that the other process imports
    std::size_t bytes = 0;   ///< of the whole handle; a multiple of the device's page
    /// The export's number; unique in the process, while descriptors are reused.
    std::uint32_t number = 0;
  };
  std::vector<Handle> handles;  ///< in address order; empty: `segment` is valid
  IpcHandle segment;            ///< of the segment, if `handles` is empty
  std::size_t offset = 0;       ///< from the start of the segment or first handle to the allocation
  std::size_t bytes = 0;        ///< of the allocation
};

CACHALOT_END_API
