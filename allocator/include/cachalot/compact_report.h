/// @file
/// The result of a compact().
#pragma once

#include "cachalot/require_cpp17.h"

#include <cstddef>

CACHALOT_BEGIN_API

/// A CompactReport says what one TensorPool::compact or RelocatableHeap::compact did.
struct CompactReport {
  std::size_t blocks_moved = 0;  ///< live blocks whose memory was moved
  std::size_t bytes_moved = 0;   ///< bytes copied
  /// Bytes given back: by a TensorPool to its allocator, by a RelocatableHeap to the device.
  std::size_t bytes_freed = 0;
};

CACHALOT_END_API
