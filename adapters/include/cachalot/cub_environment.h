/// @file
/// The environment of CUB's single-phase algorithms. Needs CCCL 3.1 or newer (CUDA 13.1).
#pragma once

#include "cachalot/require_cpp17.h"

#include <cuda/version>

#if CCCL_VERSION < 3001000
#error "cachalot/cub_environment.h needs CCCL 3.1 (CUDA 13.1): before, use cachalot/cub_scratch.h"
#endif

#include <cstddef>
#include <cuda/memory_resource>
#include <cuda/stream_ref>
#include <stdexcept>

#include "cachalot/caching_allocator.h"
#include "cachalot/device.h"

CACHALOT_BEGIN_API

/// A CubMemory is the temporary memory of CUB's algorithms, as a resource of cuda::mr. It is a
/// handle that is copied freely.
///
/// Requires: `allocator` outlives it and all of its memory.
/// Thread safety: as CachingAllocator.
class CubMemory {
 public:
  /// Allocates from `allocator` on `device`.
  CubMemory(CachingAllocator& allocator, int device) noexcept
      : allocator_(&allocator), device_(device) {}

  /// Returns `bytes` bytes for work on `stream`; nullptr for 0 bytes.
  /// Throws InvalidArgument for an alignment above 512; OutOfMemory.
  void* allocate(cuda::stream_ref stream, std::size_t bytes, std::size_t alignment = 256) {
    if (alignment > kUsualAlignment) {
      throw InvalidArgument("an alignment of " + std::to_string(alignment) +
                            ": CUB's temporary memory is aligned to 512 bytes");
    }
    return allocator_->allocate(bytes, device_, stream.get());
  }
  /// Frees what allocate returned, behind the work queued on `stream`.
  void deallocate(cuda::stream_ref stream, void* memory, std::size_t /*bytes*/,
                  std::size_t /*alignment*/ = 256) noexcept {
    if (memory == nullptr) return;
    allocator_->record_stream(memory, stream.get());
    allocator_->deallocate_when_possible(memory);
  }
  /// Returns memory that any stream may use at once, as allocate does.
  void* allocate_sync(std::size_t bytes, std::size_t alignment = 256) {
    void* const memory = allocate(cuda::stream_ref{cudaStream_t{}}, bytes, alignment);
    allocator_->device(device_)->synchronize();
    return memory;
  }
  /// Frees what allocate_sync returned. Requires: work that uses it is done.
  void deallocate_sync(void* memory, std::size_t /*bytes*/,
                       std::size_t /*alignment*/ = 256) noexcept {
    allocator_->deallocate_when_possible(memory);
  }

  /// Returns true if memory of one may be freed by the other.
  friend bool operator==(const CubMemory& a, const CubMemory& b) noexcept {
    return a.allocator_ == b.allocator_ && a.device_ == b.device_;
  }
  /// Returns !(a == b).
  friend bool operator!=(const CubMemory& a, const CubMemory& b) noexcept { return !(a == b); }
  /// Says that kernels may use the memory.
  friend constexpr void get_property(const CubMemory&, cuda::mr::device_accessible) noexcept {}

 private:
  CachingAllocator* allocator_;
  int device_;
};

/// A CubEnvironment tells CUB's single-phase algorithms the stream that they work on, and takes
/// their temporary memory from a CachingAllocator.
///
///     cachalot::CubEnvironment environment(allocator, stream);
///     cub::DeviceReduce::Sum(in, out, n, environment);
///
/// Requires: `allocator` outlives it.
/// Thread safety: a value.
class CubEnvironment {
 public:
  /// Makes the environment of `stream` on `device`.
  /// Throws InvalidArgument for a device that the allocator does not manage and for a stream of
  /// another device.
  explicit CubEnvironment(CachingAllocator& allocator, Stream stream = nullptr, int device = 0)
      : memory_(allocator, device), stream_(stream) {
    require_stream_of_device(*allocator.device(device), stream);
  }

  /// Returns the stream.
  [[nodiscard]] cuda::stream_ref query(const cuda::get_stream_t&) const noexcept {
    return cuda::stream_ref{stream_};
  }
  /// Returns the memory.
  [[nodiscard]] CubMemory query(const cuda::mr::get_memory_resource_t&) const noexcept {
    return memory_;
  }

 private:
  CubMemory memory_;
  Stream stream_;
};

CACHALOT_END_API
