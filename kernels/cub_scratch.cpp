#include "cachalot/cub_scratch.h"

#include "cachalot/errors.h"
#include "device/cuda_codes.h"

CACHALOT_BEGIN

void check_cub(const char* call, int code, const char* name) {
  if (code != 0) throw CudaError(call, code, name != nullptr ? name : cuda_code_name(code));
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

CACHALOT_END
