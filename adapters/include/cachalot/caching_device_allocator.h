/// @file
/// The replacement of CUB's deprecated CachingDeviceAllocator. Needs the CUDA runtime's headers.
#pragma once

#include "cachalot/require_cpp17.h"

#include <cuda_runtime_api.h>
#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <functional>
#include <iterator>
#include <map>
#include <mutex>
#include <new>
#include <set>
#include <string>
#include <utility>

#include "cachalot/caching_allocator.h"

CACHALOT_BEGIN_API

// NOLINTBEGIN(readability-identifier-naming): names are those of CUB's class

/// A CachingDeviceAllocator caches device memory in bins of sizes, with the functions, results and
/// public members of cub::CachingDeviceAllocator. A program changes the namespace and nothing else.
///
///     cachalot::CachingDeviceAllocator allocator;
///     void* memory = nullptr;
///     cudaError_t error = allocator.DeviceAllocate(&memory, bytes, stream);
///     ...
///     error = allocator.DeviceFree(memory);
///
/// Bins: the sizes are the powers of `bin_growth`, from bin_growth^min_bin to bin_growth^max_bin. A
/// request is rounded up to the next of them and served by a cached block of that bin alone. A
/// larger request is served exactly, and its memory is not cached.
/// Cache: freed blocks stay cached as long as the cached blocks of the device have no more than
/// `max_cached_bytes` bytes together. The default is 512 B, 4 KiB, 32 KiB, 256 KiB and 2 MiB, and
/// 6,291,455 cached bytes.
/// Streams: a block belongs to the stream that it was allocated for. Once freed, that stream may
/// have it at once, another one when the work that was queued before the free is done.
///
/// Memory is that of a CachingAllocator, whose statistics and snapshots show it. Four differences
/// to CUB's class follow from that or correct it:
/// - An allocation whose device call fails returns the error and a null pointer. CUB's class
///   returns cudaSuccess and a null pointer if the error is not cudaErrorMemoryAllocation.
/// - An allocation that passes over a block whose work is not done succeeds. CUB's class may return
///   cudaErrorNotReady, which its own query left as the runtime's last error.
/// - DeviceFree returns cudaErrorInvalidValue for a pointer that is not live on the device, and
///   cudaSuccess for a null pointer. After an error, the block is as before the call.
/// - What is freed and not cached goes to the CachingAllocator. FreeAllCached gives it to the
///   device.
///
/// Thread safety: every method may be called from any thread at any time. The members that are data
/// may be read while no other thread calls a method, or with `mutex` locked.
class CachingDeviceAllocator {
 public:
  static constexpr unsigned int INVALID_BIN = ~0u;              ///< the bin of an exact allocation
  static constexpr std::size_t INVALID_SIZE = ~std::size_t{0};  ///< the largest limit
  static constexpr int INVALID_DEVICE_ORDINAL = -1;             ///< the current device

  /// A BlockDescriptor describes a block.
  struct BlockDescriptor {
    void* d_ptr = nullptr;                     ///< address
    std::size_t bytes = 0;                     ///< bytes, those of its bin
    unsigned int bin = INVALID_BIN;            ///< its bin
    int device = INVALID_DEVICE_ORDINAL;       ///< its device
    cudaStream_t associated_stream = nullptr;  ///< the stream that it was allocated for
    cudaEvent_t ready_event = nullptr;         ///< marks the work before the last free
  };
  /// Orders blocks by device, then size.
  struct LessBytes {
    /// Returns true if `a` comes first.
    bool operator()(const BlockDescriptor& a, const BlockDescriptor& b) const {
      return a.device != b.device ? a.device < b.device : a.bytes < b.bytes;
    }
  };
  /// Orders blocks by device, then address.
  struct LessPointer {
    /// Returns true if `a` comes first.
    bool operator()(const BlockDescriptor& a, const BlockDescriptor& b) const {
      return a.device != b.device ? a.device < b.device : std::less<>()(a.d_ptr, b.d_ptr);
    }
  };
  /// TotalBytes are the bytes of a device's blocks.
  struct TotalBytes {
    std::size_t free = 0;  ///< of cached blocks
    std::size_t live = 0;  ///< of live blocks
  };
  using CachedBlocks = std::multiset<BlockDescriptor, LessBytes>;  ///< blocks by size
  using BusyBlocks = std::multiset<BlockDescriptor, LessPointer>;  ///< blocks by address
  using GpuCachedBytes = std::map<int, TotalBytes>;                ///< bytes by device

  /// Makes an allocator with the bins growth^least_bin to growth^largest_bin that caches at most
  /// `limit_bytes` bytes per device. With `skips_cleanup`, the destructor frees no cached blocks.
  /// Throws InvalidArgument if `growth` is less than 2.
  explicit CachingDeviceAllocator(unsigned int growth, unsigned int least_bin = 1,
                                  unsigned int largest_bin = INVALID_BIN,
                                  std::size_t limit_bytes = INVALID_SIZE,
                                  bool skips_cleanup = false)
      : CachingDeviceAllocator(process_allocator(), growth, least_bin, largest_bin, limit_bytes,
                               skips_cleanup) {}
  /// Makes an allocator with the default bins. With `prints`, each event is printed on stdout.
  explicit CachingDeviceAllocator(bool skips_cleanup = false, bool prints = false)
      : CachingDeviceAllocator(process_allocator(), skips_cleanup, prints) {}
  /// Makes an allocator with the default bins in memory of `memory`, which must outlive it.
  explicit CachingDeviceAllocator(CachingAllocator& memory, bool skips_cleanup = false,
                                  bool prints = false)
      : CachingDeviceAllocator(memory, 8, 3, 7, kDefaultCachedBytes, skips_cleanup) {
    debug = prints;
  }
  /// Makes an allocator in memory of `memory`, which must outlive it; otherwise as the first.
  CachingDeviceAllocator(CachingAllocator& memory, unsigned int growth, unsigned int least_bin,
                         unsigned int largest_bin, std::size_t limit_bytes,
                         bool skips_cleanup = false);
  /// Frees cached blocks, unless made with `skip_cleanup`. Live blocks stay live.
  virtual ~CachingDeviceAllocator();
  CachingDeviceAllocator(const CachingDeviceAllocator&) = delete;
  CachingDeviceAllocator& operator=(const CachingDeviceAllocator&) = delete;

  /// Sets the limit of cached bytes per device. Frees nothing. Returns cudaSuccess.
  cudaError_t SetMaxCachedBytes(std::size_t limit_bytes);
  /// Sets `*d_ptr` to at least `bytes` bytes of `device`, for work on `active_stream`; to null
  /// after an error. If memory runs out, it frees the device's cached blocks and tries once more.
  /// Returns cudaErrorMemoryAllocation without memory, cudaErrorInvalidDevice for a device that
  /// does not exist, cudaErrorInvalidValue for a null `d_ptr`, or the error of the CUDA call that
  /// failed.
  cudaError_t DeviceAllocate(int device, void** d_ptr, std::size_t bytes,
                             cudaStream_t active_stream = nullptr);
  /// Allocates on the current device; otherwise as the function above.
  cudaError_t DeviceAllocate(void** d_ptr, std::size_t bytes,
                             cudaStream_t active_stream = nullptr) {
    return DeviceAllocate(INVALID_DEVICE_ORDINAL, d_ptr, bytes, active_stream);
  }
  /// Frees a live block of `device`, which becomes cached or goes back.
  cudaError_t DeviceFree(int device, void* d_ptr);
  /// Frees a live block of the current device; otherwise as the function above.
  cudaError_t DeviceFree(void* d_ptr) { return DeviceFree(INVALID_DEVICE_ORDINAL, d_ptr); }
  /// Frees all cached blocks of all devices, and gives their memory to the devices.
  /// Returns the first error of a call; blocks that were not freed stay cached.
  cudaError_t FreeAllCached();

  /// Returns base^exp, modulo 2^32.
  static unsigned int IntPow(unsigned int base, unsigned int exp);
  /// Sets `power` to the least exponent for which base^power is at least `value`, and
  /// `rounded_bytes` to that power. If it does not fit: to 64, and to the largest value.
  static void NearestPowerOf(unsigned int& power, std::size_t& rounded_bytes, unsigned int base,
                             std::size_t value);

  std::mutex mutex;              ///< guards what follows
  unsigned int bin_growth;       ///< growth of the bins' sizes
  unsigned int min_bin;          ///< exponent of the least bin
  unsigned int max_bin;          ///< exponent of the largest bin
  std::size_t min_bin_bytes;     ///< bytes of the least bin
  std::size_t max_bin_bytes;     ///< bytes of the largest bin
  std::size_t max_cached_bytes;  ///< limit of cached bytes per device
  const bool skip_cleanup;       ///< if true, the destructor frees nothing
  bool debug = false;            ///< if true, events are printed on stdout
  GpuCachedBytes cached_bytes;   ///< bytes of cached and live blocks
  CachedBlocks cached_blocks;    ///< free blocks
  BusyBlocks live_blocks;        ///< blocks in use

 private:
  static constexpr std::size_t kDefaultCachedBytes = 3 * (std::size_t{2} << 20) - 1;

  static CachingAllocator& process_allocator();
  template <typename Action>
  static cudaError_t code_of(Action&& action) noexcept;
  cudaError_t find_device(int& device) const;
  BlockDescriptor wanted(int device, std::size_t bytes, cudaStream_t stream) const;
  bool take_cached(BlockDescriptor& block);
  void allocate_new(BlockDescriptor& block);
  void allocate_memory(BlockDescriptor& block);
  void free_cached(CachedBlocks::iterator block);
  void free_cached_of(int device);
  void print(const char* what, const BlockDescriptor& block) const;

  CachingAllocator& memory_;
};

// NOLINTEND(readability-identifier-naming)

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
