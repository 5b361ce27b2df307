/// @file
/// The allocator of TensorRT's runtimes and builders. Needs TensorRT's headers, 10.0 or newer.
#pragma once

#include "cachalot/require_cpp17.h"

#include <NvInferRuntime.h>

#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <string>
#include <utility>

#include "cachalot/caching_allocator.h"

#if NV_TENSORRT_MAJOR < 10
#error "cachalot/tensorrt.h needs TensorRT 10 or newer: IGpuAsyncAllocator came with 10.0"
#endif

CACHALOT_BEGIN_API

/// A TensorRtAllocator gives TensorRT device memory in the order of its streams.
///
///     cachalot::TensorRtAllocator memory(allocator);
///     runtime->setGpuAllocator(&memory);            // nvinfer1::IRuntime, IBuilder
///     context->setTemporaryStorageAllocator(&memory);  // nvinfer1::IExecutionContext
///
/// Memory that is freed on a stream serves that stream at once, and others when the work that was
/// queued on both the allocation's stream and this stream is done.
///
/// Errors: TensorRT's functions must not throw. They return nullptr or false, and `on_error`
/// receives the reason.
///
/// Requires: the CachingAllocator outlives it, and it outlives all objects of TensorRT that use it.
/// Thread safety: every method may be called from any thread at any time.
class TensorRtAllocator final : public nvinfer1::IGpuAsyncAllocator {
 public:
  /// An ErrorHandler receives errors, on the thread that called TensorRT. It must not throw.
  using ErrorHandler = std::function<void(const std::exception&)>;

  /// Allocates from `allocator` on `device`, which is the device that TensorRT's objects are made
  /// on.
  /// Throws InvalidArgument for a device that the allocator does not manage.
  explicit TensorRtAllocator(CachingAllocator& allocator, int device = 0,
                             ErrorHandler on_error = nullptr)
      : allocator_(allocator), device_(device), on_error_(std::move(on_error)) {
    allocator.device(device);
  }

  /// Returns `size` bytes for work on `stream`; nullptr for 0 bytes, without enough memory, and for
  /// an alignment that is not a power of two up to 512.
  void* allocateAsync(std::uint64_t const size, std::uint64_t const alignment,
                      nvinfer1::AllocatorFlags const /*flags*/,
                      cudaStream_t stream) noexcept override {
    return value_or<void*>(nullptr, [&] {
      require_alignment(alignment);
      return allocator_.allocate(size, device_, stream);
    });
  }
  /// Frees what allocateAsync returned, behind the work queued on `stream`. Returns false, having
  /// freed nothing, for a pointer that is not a live allocation. nullptr is ignored.
  bool deallocateAsync(void* const memory, cudaStream_t stream) noexcept override {
    return value_or(false, [&] {
      if (memory == nullptr) return true;
      allocator_.record_stream(memory, stream);
      allocator_.deallocate(memory);
      return true;
    });
  }
  /// Returns `memory` if it was asked for with at least `size` bytes. Returns nullptr otherwise:
  /// TensorRT then allocates anew and copies.
  void* reallocate(void* const memory, std::uint64_t /*alignment*/,
                   std::uint64_t size) noexcept override {
    return value_or<void*>(nullptr, [&] {
      const bool has_room = memory != nullptr && size <= allocator_.requested_size(memory);
      return has_room ? memory : nullptr;
    });
  }

 private:
  static void require_alignment(std::uint64_t alignment) {
    const bool is_power = (alignment & (alignment - 1)) == 0;  // or 0, which asks for none
    if (alignment == 0 || (is_power && alignment <= kUsualAlignment)) return;
    throw InvalidArgument("an alignment of " + std::to_string(alignment) +
                          ": memory is aligned to powers of two up to 512");
  }

  template <typename Value, typename Function>
  Value value_or(Value otherwise, Function&& function) noexcept {
    try {
      return std::forward<Function>(function)();
    } catch (const std::exception& error) {
      if (on_error_) on_error_(error);
      return otherwise;
    }
  }

  CachingAllocator& allocator_;
  const int device_;
  const ErrorHandler on_error_;
};

CACHALOT_END_API
