/// @file
/// The functions of CachingDeviceAllocator. Include cachalot/caching_device_allocator.h.
#pragma once

#include "cachalot/require_cpp17.h"

#include <algorithm>
#include <cstdio>
#include <iterator>
#include <new>
#include <string>
#include <utility>

#include "cachalot/caching_device_allocator.h"

CACHALOT_BEGIN_API

// Never destroyed: allocators with static storage may outlive every other object.
inline CachingAllocator& CachingDeviceAllocator::process_allocator() {
  static CachingAllocator& allocator = *new CachingAllocator(cuda_devices());
  return allocator;
}

// CUDA's runtime has the driver's numbers for the errors that calls of memory, events and streams
// give.
template <typename Action>
cudaError_t CachingDeviceAllocator::code_of(Action&& action) noexcept {
  try {
    std::forward<Action>(action)();
    return cudaSuccess;
  } catch (const CudaError& error) {
    return static_cast<cudaError_t>(error.code());
  } catch (const std::bad_alloc&) {
    return cudaErrorMemoryAllocation;
  } catch (const InvalidArgument&) {
    return cudaErrorInvalidValue;
  } catch (...) {
    return cudaErrorUnknown;
  }
}

inline CachingDeviceAllocator::CachingDeviceAllocator(CachingAllocator& memory, unsigned int growth,
                                                      unsigned int least_bin,
                                                      unsigned int largest_bin,
                                                      std::size_t limit_bytes, bool skips_cleanup)
    : bin_growth(growth),
      min_bin(least_bin),
      max_bin(largest_bin),
      min_bin_bytes(IntPow(growth, least_bin)),
      max_bin_bytes(IntPow(growth, largest_bin)),
      max_cached_bytes(limit_bytes),
      skip_cleanup(skips_cleanup),
      memory_(memory) {
  if (growth < 2) {
    throw InvalidArgument("bin_growth is " + std::to_string(growth) +
                          ": sizes of bins grow by a factor of at least 2");
  }
}

inline CachingDeviceAllocator::~CachingDeviceAllocator() {
  if (!skip_cleanup) FreeAllCached();
}

inline cudaError_t CachingDeviceAllocator::SetMaxCachedBytes(std::size_t limit_bytes) {
  const std::lock_guard lock(mutex);
  max_cached_bytes = limit_bytes;
  return cudaSuccess;
}

inline cudaError_t CachingDeviceAllocator::DeviceAllocate(int device, void** d_ptr,
                                                          std::size_t bytes,
                                                          cudaStream_t active_stream) {
  if (d_ptr == nullptr) return cudaErrorInvalidValue;
  *d_ptr = nullptr;
  if (const cudaError_t error = find_device(device); error != cudaSuccess) return error;
  return code_of([&] {
    BlockDescriptor block = wanted(device, bytes, active_stream);
    if (!take_cached(block)) allocate_new(block);
    *d_ptr = block.d_ptr;
  });
}

inline cudaError_t CachingDeviceAllocator::DeviceFree(int device, void* d_ptr) {
  if (d_ptr == nullptr) return cudaSuccess;
  if (const cudaError_t error = find_device(device); error != cudaSuccess) return error;
  const std::lock_guard lock(mutex);
  BlockDescriptor key;
  key.d_ptr = d_ptr;
  key.device = device;
  const auto live = live_blocks.find(key);
  if (live == live_blocks.end()) return cudaErrorInvalidValue;
  return code_of([&] {
    const BlockDescriptor block = *live;
    TotalBytes& totals = cached_bytes[device];
    const bool is_kept = block.bin != INVALID_BIN && block.bytes <= max_cached_bytes &&
                         totals.free <= max_cached_bytes - block.bytes;
    if (is_kept) {
      memory_.device(device)->event_record(block.ready_event, block.associated_stream);
      cached_blocks.insert(block);
      totals.free += block.bytes;
    } else {
      memory_.deallocate(d_ptr);
    }
    totals.live -= block.bytes;
    live_blocks.erase(live);
    print(is_kept ? "cached" : "freed", block);
    if (!is_kept) memory_.device(device)->event_destroy(block.ready_event);
  });
}

inline cudaError_t CachingDeviceAllocator::FreeAllCached() {
  return code_of([&] {
    {
      const std::lock_guard lock(mutex);
      while (!cached_blocks.empty()) free_cached(cached_blocks.begin());
    }
    memory_.empty_cache();
  });
}

inline unsigned int CachingDeviceAllocator::IntPow(unsigned int base, unsigned int exp) {
  unsigned int power = 1;
  for (; exp != 0; exp >>= 1, base *= base) {
    if ((exp & 1) != 0) power *= base;
  }
  return power;
}

inline void CachingDeviceAllocator::NearestPowerOf(unsigned int& power, std::size_t& rounded_bytes,
                                                   unsigned int base, std::size_t value) {
  power = 0;
  rounded_bytes = 1;
  while (rounded_bytes < value) {
    if (rounded_bytes > INVALID_SIZE / base) {
      power = sizeof(std::size_t) * 8;
      rounded_bytes = INVALID_SIZE;
      return;
    }
    rounded_bytes *= base;
    ++power;
  }
}

inline cudaError_t CachingDeviceAllocator::find_device(int& device) const {
  if (device == INVALID_DEVICE_ORDINAL) {
    if (const cudaError_t error = cudaGetDevice(&device); error != cudaSuccess) return error;
  }
  return device >= 0 && device < memory_.device_count() ? cudaSuccess : cudaErrorInvalidDevice;
}

inline CachingDeviceAllocator::BlockDescriptor CachingDeviceAllocator::wanted(
    int device, std::size_t bytes, cudaStream_t stream) const {
  BlockDescriptor block;
  block.device = device;
  block.associated_stream = stream;
  NearestPowerOf(block.bin, block.bytes, bin_growth, bytes);
  if (block.bin > max_bin || block.bytes < bytes || block.bytes == INVALID_SIZE) {
    block.bin = INVALID_BIN;
    block.bytes = bytes;
  } else if (block.bin < min_bin) {
    block.bin = min_bin;
    block.bytes = min_bin_bytes;
  }
  return block;
}

// Makes `block` a cached one of its bin that its stream may have, if there is one.
inline bool CachingDeviceAllocator::take_cached(BlockDescriptor& block) {
  if (block.bin == INVALID_BIN) return false;
  const std::lock_guard lock(mutex);
  Device& device = *memory_.device(block.device);
  const auto [first, last] = cached_blocks.equal_range(block);
  const auto found = std::find_if(first, last, [&](const BlockDescriptor& cached) {
    return cached.associated_stream == block.associated_stream ||
           device.event_query(cached.ready_event);
  });
  if (found == last) return false;
  const bool is_another_streams = found->associated_stream != block.associated_stream;
  if (is_another_streams) memory_.record_stream(found->d_ptr, block.associated_stream);
  block.d_ptr = found->d_ptr;
  block.ready_event = found->ready_event;
  live_blocks.insert(block);
  cached_blocks.erase(found);
  TotalBytes& totals = cached_bytes[block.device];
  totals.free -= block.bytes;
  totals.live += block.bytes;
  print("reused", block);
  return true;
}

inline void CachingDeviceAllocator::allocate_new(BlockDescriptor& block) {
  Device& device = *memory_.device(block.device);
  block.ready_event = device.event_create();
  try {
    allocate_memory(block);
    const std::lock_guard lock(mutex);
    TotalBytes& totals = cached_bytes[block.device];
    live_blocks.insert(block);
    totals.live += block.bytes;
    print("allocated", block);
  } catch (...) {
    memory_.deallocate_when_possible(block.d_ptr);
    device.event_destroy(block.ready_event);
    throw;
  }
}

// Requires that the lock is not held: callbacks of the heap may use this cache.
inline void CachingDeviceAllocator::allocate_memory(BlockDescriptor& block) {
  // CUDA gives an address for 0 bytes, too.
  const std::size_t bytes = std::max<std::size_t>(block.bytes, 1);
  try {
    block.d_ptr = memory_.allocate(bytes, block.device, block.associated_stream);
  } catch (const OutOfMemory&) {
    free_cached_of(block.device);
    block.d_ptr = memory_.allocate(bytes, block.device, block.associated_stream);
  }
}

inline void CachingDeviceAllocator::free_cached(CachedBlocks::iterator at) {
  const BlockDescriptor block = *at;
  memory_.deallocate(block.d_ptr);
  cached_blocks.erase(at);
  cached_bytes[block.device].free -= block.bytes;
  print("freed", block);
  memory_.device(block.device)->event_destroy(block.ready_event);
}

inline void CachingDeviceAllocator::free_cached_of(int device) {
  const std::lock_guard lock(mutex);
  BlockDescriptor least;
  least.device = device;
  for (auto at = cached_blocks.lower_bound(least);
       at != cached_blocks.end() && at->device == device;) {
    free_cached(std::exchange(at, std::next(at)));
  }
}

inline void CachingDeviceAllocator::print(const char* what, const BlockDescriptor& block) const {
  if (!debug) return;
  const TotalBytes& totals = cached_bytes.at(block.device);
  std::printf(
      "device %d %s %zu bytes at %p for stream %p; %zu cached blocks, %zu bytes; %zu live blocks, "
      "%zu bytes\n",
      block.device, what, block.bytes, block.d_ptr, static_cast<void*>(block.associated_stream),
      cached_blocks.size(), totals.free, live_blocks.size(), totals.live);
}

CACHALOT_END_API
