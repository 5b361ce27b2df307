/// @file
/// The watch over the machine's memory, which integrated GPUs use as well.
#pragma once

#include "cachalot/require_cpp17.h"

#include <cstddef>
#include <memory>

#include "cachalot/caching_allocator.h"

CACHALOT_BEGIN_API

/// A MemoryWatch gives cached memory of integrated GPUs (DeviceProperties::integrated) back while
/// the machine is short of memory, which other processes may use.
///
///     const cachalot::MemoryWatch watch(allocator);
///
/// The machine is short of memory when
/// - less is available (MemAvailable of /proc/meminfo) than the allocator leaves to the system when
///   it grows: 1 GiB, of machines below 16 GiB a sixteenth. By AllocatorSleep::give_way memory goes
///   back until twice as much is available: cached memory, and then evictable tags;
/// - or some process waited for memory in a tenth of the last 10 s ("some avg10" of
///   /proc/pressure/memory), and less than an eighth of the memory is available; else processes
///   wait for limits of their own, as a container's. All cached memory goes back by
///   AllocatorLimits::trim, at most once in 10 s.
///
/// A thread looks five times a second; malloc and free do nothing for it. Without an integrated GPU
/// there is no thread. In a forked child each method does nothing. The allocator must outlive the
/// watch.
///
/// libcachalot.so and the PyTorch plug-in have one for their allocator.
///
/// Thread safety: every method may be called from any thread.
class MemoryWatch {
 public:
  /// Starts the thread if there is an integrated GPU.
  explicit MemoryWatch(CachingAllocator& allocator);
  ~MemoryWatch();
  MemoryWatch(const MemoryWatch&) = delete;
  MemoryWatch& operator=(const MemoryWatch&) = delete;

  /// Looks now, as the thread does. Returns the bytes given back. Throws CudaError.
  std::size_t look();
  /// Returns the bytes given back so far.
  std::size_t given_back_bytes() const;

 private:
  class Implementation;
  std::unique_ptr<Implementation> implementation_;
};

CACHALOT_END_API
