/// @file
/// Figures of a simulated device's managed memory.
#pragma once

#include "cachalot/require_cpp17.h"

#include <cstddef>

#include "cachalot/version.h"

CACHALOT_BEGIN_API

/// ManagedMemory has the bytes of managed memory of a device.
struct ManagedMemory {
  std::size_t used_bytes = 0;       ///< on the device and on the host
  std::size_t peak_used_bytes = 0;  ///< the largest used_bytes so far
  std::size_t at_peak_bytes = 0;    ///< on the device when its used memory was largest
  std::size_t peak_host_bytes = 0;  ///< the most that lay on the host
};

CACHALOT_END_API
