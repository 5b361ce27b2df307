#include "cachalot/cub_scratch.h"

#include "cachalot/errors.h"
#if CACHALOT_HAS_CUDA
#include "device/cuda_calls.h"
#else
#include "device/cuda_codes.h"
#endif

namespace cachalot {

void check_cub(const char* call, int code) {
#if CACHALOT_HAS_CUDA
  check(call, static_cast<cudaError_t>(code));
#else
  if (code != 0) throw CudaError(call, code, cuda_code_name(code));
#endif
}

void CubScratch::reserve(std::size_t bytes) {
  const std::size_t held = this->bytes();
  if (bytes <= held) return;
  const std::size_t grown = std::max(bytes, held + held / 2);
  release();  // first: the stream's order lets the new one lie where the old one was
  try {
    allocate(grown);
  } catch (const OutOfMemory&) {
    if (grown == bytes) throw;
    allocate(bytes);
  }
}

void CubScratch::allocate(std::size_t bytes) {
  CachingAllocator& allocator = *buffer_.get_deleter().allocator;
  buffer_ = allocate_owned(allocator, bytes, device_, stream_);
  bytes_ = bytes;
}

}  // namespace cachalot
