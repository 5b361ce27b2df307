/// @file
/// The functions that the allocator calls when memory runs short.
#pragma once

#include "cachalot/require_cpp17.h"

#include <cstddef>
#include <functional>

#include "cachalot/device.h"
#include "cachalot/pool_id.h"

CACHALOT_BEGIN_API

/// The largest request is smaller than this many bytes: 1 EiB, PyTorch's limit.
inline constexpr std::size_t kMaxRequestBytes = std::size_t{1} << 60;

/// An OutOfMemoryReport describes a request that is about to fail.
struct OutOfMemoryReport {
  int device = 0;                 ///< index of the device
  std::size_t segment_bytes = 0;  ///< bytes that the device was asked for
  /// Bytes that the memory fraction allows, else the device's total.
  std::size_t allowed_bytes = 0;
  std::size_t device_free_bytes = 0;   ///< bytes that are free on the device
  std::size_t device_total_bytes = 0;  ///< bytes of the device
  std::size_t requested_bytes = 0;     ///< bytes that the caller asked for
  Stream stream = nullptr;             ///< the stream of the request
  PoolId pool;                         ///< the pool of the request; a sleeping one is being woken
};

/// An OutOfMemoryObserver is called before an OutOfMemory is thrown, with none of the allocator's
/// locks held: it may call the allocator. An exception that it throws replaces the OutOfMemory.
using OutOfMemoryObserver = std::function<void(const OutOfMemoryReport&)>;

/// A RefusalReport describes a request that the option throw_on_cudamalloc_oom refuses.
struct RefusalReport {
  int device = 0;                 ///< index of the device
  std::size_t segment_bytes = 0;  ///< bytes that the device would have been asked for
  std::size_t held_bytes = 0;     ///< bytes held from the device by then
  std::size_t total_bytes = 0;    ///< the device's total
  /// Bytes that the caller asked for.
  std::size_t requested_bytes = 0;
};

/// A RefusalObserver is called before the OutOfMemory of a refusal is thrown, with none of the
/// allocator's locks held: it may call the allocator. An exception that it throws replaces the
/// OutOfMemory.
using RefusalObserver = std::function<void(const RefusalReport&)>;

/// A FreeMemoryCallback is called before the allocator asks the device for memory, with none of the
/// allocator's locks held: it may call the allocator. It frees what it can.
/// Returns true if it freed anything; the allocator then searches its free blocks again.
using FreeMemoryCallback = std::function<bool()>;

CACHALOT_END_API
