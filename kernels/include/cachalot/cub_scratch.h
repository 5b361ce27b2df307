/// @file
/// The temporary storage of CUB's algorithms.
#pragma once

#include "cachalot/require_cpp17.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "cachalot/buffers.h"
#include "cachalot/caching_allocator.h"

CACHALOT_BEGIN_API

/// Throws CudaError in the name of `call`, unless `code` is 0, cudaSuccess. `name` may be null.
void check_cub(const char* call, int code, const char* name);

/// Returns the name that the calling program's CUDA runtime has for a cudaError_t; null for a
/// number of another type.
template <typename Code>
auto cub_error_name(Code code, int /*preferred*/) -> decltype(cudaGetErrorName(code)) {
  return cudaGetErrorName(code);
}
/// Returns null: the caller's headers do not declare cudaGetErrorName for this type.
template <typename Code>
const char* cub_error_name(Code /*code*/, long /*otherwise*/) {
  return nullptr;
}

/// A CubScratch gives CUB's two-phase algorithms their temporary storage in one call, and allocates
/// nothing once its buffer is large enough.
///
///     cachalot::CubScratch scratch(allocator, stream);
///     scratch([&](void* temp, std::size_t& bytes) {
///       return cub::DeviceReduce::Sum(temp, bytes, in, out, n, stream);
///     });
///
/// It needs neither CUB nor CUDA: any function will do that asks for its bytes when `temp` is null
/// and then works in them.
///
/// A scratch is for one stream, whose order keeps its calls apart. It keeps the largest buffer that
/// was needed and grows by at least half, so that slowly growing sizes cost few allocations. A
/// scratch that was moved from holds nothing.
///
/// Requires: `allocator` outlives the scratch.
/// Thread safety: one thread at a time.
class CubScratch {
 public:
  /// Makes a scratch for work on `stream`. Allocates nothing yet.
  /// Throws InvalidArgument for a device that the allocator does not manage.
  explicit CubScratch(CachingAllocator& allocator, Stream stream = nullptr, int device = 0)
      : stream_(stream), device_(device), buffer_(nullptr, Deallocate{&allocator}) {
    allocator.device(device);
  }

  /// Calls `call(void* temp, std::size_t& bytes)`, which returns a cudaError_t, twice: first with a
  /// null `temp`, to learn how many bytes it needs, then with a buffer of that size. The buffer is
  /// not null even for 0 bytes. `call` may use it in work on the scratch's stream only.
  /// Throws CudaError for an error of `call`, and OutOfMemory. The scratch is then as before, or
  /// holds nothing.
  template <typename Call>
  void operator()(Call&& call) {
    std::size_t bytes = 0;
    check("the size query of a CUB call", call(nullptr, bytes));
    reserve(std::max(bytes, std::size_t{1}));
    check("a CUB call", call(buffer_.get(), bytes));
  }

  /// Makes the buffer hold at least `bytes` from now on. Throws OutOfMemory.
  void reserve(std::size_t bytes);
  /// Frees the buffer; the next call allocates a new one.
  void release() { buffer_.reset(); }
  /// Returns the bytes of the buffer; 0 without one.
  std::size_t bytes() const { return buffer_ != nullptr ? bytes_ : 0; }

 private:
  template <typename Code>
  static void check(const char* call, Code code) {
    check_cub(call, static_cast<int>(code), cub_error_name(code, 0));
  }
  void allocate(std::size_t bytes);

  Stream stream_;
  int device_;
  std::size_t bytes_ = 0;  // of the buffer, if there is one
  Allocation buffer_;
};

CACHALOT_END_API
