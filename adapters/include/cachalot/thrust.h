/// @file
/// Thrust's containers and algorithms in memory of a CachingAllocator. Needs Thrust's headers.
#pragma once

#include "cachalot/require_cpp17.h"

#include <thrust/device_ptr.h>
#include <thrust/device_reference.h>
#include <thrust/system/cuda/execution_policy.h>

#include <cstddef>
#include <type_traits>

#include "cachalot/buffers.h"
#include "cachalot/caching_allocator.h"
#include "cachalot/device.h"

CACHALOT_BEGIN_API

/// A ThrustAllocator gives Thrust device memory for work on one stream.
///
///     cachalot::ThrustAllocator<int> on_stream(allocator, stream);
///     thrust::device_vector<int, cachalot::ThrustAllocator<int>> keys(n, on_stream);
///     thrust::sort(cachalot::thrust_policy_nosync(allocator, stream), keys.begin(), keys.end());
///
/// It is an allocator as C++ defines one. Copies of it, of any T, are equal if allocator, stream
/// and device are the same.
///
/// Requires: `allocator` outlives it and all of its memory; memory is used on its stream only, or
/// declared by CachingAllocator::record_stream. A Thrust call without a policy uses the default
/// stream.
/// Thread safety: as CachingAllocator.
template <typename T>
class ThrustAllocator {
 public:
  using value_type = T;                                       ///< the type of an element
  using pointer = thrust::device_ptr<T>;                      ///< an address of the device
  using const_pointer = thrust::device_ptr<const T>;          ///< an address of the device
  using reference = thrust::device_reference<T>;              ///< an element on the device
  using const_reference = thrust::device_reference<const T>;  ///< an element on the device
  using size_type = std::size_t;                              ///< a number of elements
  using difference_type = typename pointer::difference_type;  ///< a distance of elements
  /// Names the allocator of elements of another type.
  template <typename U>
  struct rebind {
    using other = ThrustAllocator<U>;  ///< the allocator
  };

  /// Allocates from `allocator` on `device` for work on `stream`.
  /// Throws InvalidArgument for a device that the allocator does not manage and for a stream of
  /// another device.
  explicit ThrustAllocator(CachingAllocator& allocator, Stream stream = nullptr, int device = 0)
      : allocator_(&allocator), stream_(stream), device_(device) {
    require_stream_of_device(*allocator.device(device), stream);
  }
  /// Allocates as `other` does.
  template <typename U>
  // NOLINTNEXTLINE(google-explicit-constructor): as every allocator's
  ThrustAllocator(const ThrustAllocator<U>& other) noexcept
      : allocator_(other.allocator()), stream_(other.stream()), device_(other.device()) {}

  /// Returns memory for `count` elements; null for 0.
  /// Throws OutOfMemory, a std::bad_alloc; InvalidArgument if their bytes overflow.
  pointer allocate(size_type count) {
    void* const memory = allocator_->allocate(array_bytes(count, sizeof(T)), device_, stream_);
    return pointer(static_cast<T*>(memory));
  }
  /// Frees what allocate returned, in the order of the stream.
  void deallocate(pointer memory, size_type /*count*/) noexcept {
    allocator_->deallocate_when_possible(
        const_cast<std::remove_cv_t<T>*>(thrust::raw_pointer_cast(memory)));
  }

  /// Returns the allocator behind.
  CachingAllocator* allocator() const noexcept { return allocator_; }
  /// Returns the stream.
  Stream stream() const noexcept { return stream_; }
  /// Returns the index of the device.
  int device() const noexcept { return device_; }

 private:
  CachingAllocator* allocator_;
  Stream stream_;
  int device_;
};

/// Returns true if memory of one may be freed by the other.
template <typename T, typename U>
bool operator==(const ThrustAllocator<T>& a, const ThrustAllocator<U>& b) noexcept {
  return a.allocator() == b.allocator() && a.stream() == b.stream() && a.device() == b.device();
}
/// Returns !(a == b).
template <typename T, typename U>
bool operator!=(const ThrustAllocator<T>& a, const ThrustAllocator<U>& b) noexcept {
  return !(a == b);
}

/// Returns the policy `thrust::cuda::par_nosync(allocator).on(stream)`: algorithms run on `stream`,
/// take temporary memory from `allocator` and do not wait where they need not.
/// Requires: `device` is CUDA's current device when an algorithm is called.
/// Throws as ThrustAllocator's constructor.
inline auto thrust_policy_nosync(CachingAllocator& allocator, Stream stream = nullptr,
                                 int device = 0) {
  return thrust::cuda::par_nosync(ThrustAllocator<char>(allocator, stream, device)).on(stream);
}

/// Returns the policy `thrust::cuda::par(allocator).on(stream)`: as thrust_policy_nosync, and each
/// algorithm waits for its work.
inline auto thrust_policy(CachingAllocator& allocator, Stream stream = nullptr, int device = 0) {
  return thrust::cuda::par(ThrustAllocator<char>(allocator, stream, device)).on(stream);
}

CACHALOT_END_API
