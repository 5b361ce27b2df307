/// @file
/// The size of an array in bytes, checked.
#pragma once

#include "cachalot/require_cpp17.h"

#include <cstddef>
#include <limits>
#include <string>

#include "cachalot/errors.h"

CACHALOT_BEGIN_API

/// Returns `count` * `element_bytes`.
/// Throws InvalidArgument, which names both, if a std::size_t does not hold the product.
/// Requires: `element_bytes` > 0.
inline std::size_t array_bytes(std::size_t count, std::size_t element_bytes) {
  if (count > std::numeric_limits<std::size_t>::max() / element_bytes) {
    throw InvalidArgument("an array of " + std::to_string(count) + " elements of " +
                          std::to_string(element_bytes) +
                          " bytes has more bytes than a std::size_t can hold");
  }
  return count * element_bytes;
}

CACHALOT_END_API
