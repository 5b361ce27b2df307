// What happens, and who is told, when memory runs out.
#pragma once

#include "cachalot/require_cpp17.h"

#include <cstddef>
#include <functional>

namespace cachalot {

// Sizes of this and more are refused: 1 EiB (PyTorch's limit).
inline constexpr std::size_t kMaxRequestBytes = std::size_t{1} << 60;

// Given to out-of-memory observers before the exception is thrown.
struct OutOfMemoryReport {
  int device = 0;
  std::size_t segment_bytes = 0;  // what the device was asked for
  std::size_t allowed_bytes = 0;  // the memory fraction's limit, else the device's total
  std::size_t device_free_bytes = 0;
};
using OutOfMemoryObserver = std::function<void(const OutOfMemoryReport&)>;

// Asked before the allocator grows; frees what it can and returns whether it freed anything.
using FreeMemoryCallback = std::function<bool()>;

}  // namespace cachalot
