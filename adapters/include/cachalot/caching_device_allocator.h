/// @file
/// The replacement of CUB's deprecated CachingDeviceAllocator. Needs the CUDA runtime's headers.
#pragma once

#include "cachalot/require_cpp17.h"

#include <cuda_runtime_api.h>

#include <cstddef>
#include <functional>
#include <map>
#include <mutex>
#include <set>

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

CACHALOT_END_API

#include "cachalot/caching_device_allocator_inline.h"  // IWYU pragma: export
