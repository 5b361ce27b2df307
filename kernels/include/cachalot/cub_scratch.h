// CUB's two-phase temporary storage in one call, and no allocation in the steady state.
//
//   cachalot::CubScratch scratch(allocator, stream);
//   scratch([&](void* temp, std::size_t& bytes) { return cub::DeviceReduce::Sum(temp, bytes, in, out, n, stream); });
//
// Needs no CUB and no CUDA by itself: whatever asks for its bytes when `temp` is null and then works in them will do.
#pragma once

#include "cachalot/require_cpp17.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "cachalot/allocation.h"
#include "cachalot/caching_allocator.h"

namespace cachalot {

// Throws CudaError in the name of the call, unless `code` is 0, cudaSuccess.
void check_cub(const char* call, int code);

// A buffer for the calls of one stream: they use it one after the other, so that the stream's order is all it takes.
// For another stream, another scratch. It keeps the largest buffer that was needed, and grows by half at least, so that
// sizes which creep up cost a few allocations. Not thread-safe. A scratch that was moved from holds nothing.
// `allocator` outlives the scratch.
class CubScratch {
 public:
  // Allocates nothing yet. InvalidArgument for a device that the allocator has not.
  explicit CubScratch(CachingAllocator& allocator, Stream stream = nullptr, int device = 0)
      : stream_(stream), device_(device), buffer_(nullptr, Deallocate{&allocator}) {
    allocator.device(device);
  }

  // Calls `call(void* temp, std::size_t& bytes)`, which returns a cudaError_t, twice: with null, to learn how many
  // bytes it needs, and with a buffer that has them, which it may use in work on the scratch's stream only. Not null
  // even for 0 bytes, since that would ask again. Throws CudaError for an error of `call`, and OutOfMemory; then the
  // scratch is as before, or holds nothing.
  template <typename Call>
  void operator()(Call&& call) {
    std::size_t bytes = 0;
    check_cub("the size query of a CUB call", static_cast<int>(call(nullptr, bytes)));
    reserve(std::max(bytes, std::size_t{1}));
    check_cub("a CUB call", static_cast<int>(call(buffer_.get(), bytes)));
  }

  // Holds at least `bytes` from now on.
  void reserve(std::size_t bytes);
  // The buffer goes back to the allocator; the next call gets a new one.
  void release() { buffer_.reset(); }
  std::size_t bytes() const { return buffer_ != nullptr ? bytes_ : 0; }  // of the buffer that it holds

 private:
  void allocate(std::size_t bytes);

  Stream stream_;
  int device_;
  std::size_t bytes_ = 0;  // of the buffer, if there is one
  Allocation buffer_;
};

}  // namespace cachalot
