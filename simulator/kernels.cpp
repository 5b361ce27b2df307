#include "simulator/kernels.h"

#include <algorithm>
#include <climits>
#include <cstdint>

#include "base/bytes.h"
#include "device/cuda_codes.h"
#include "simulator/fat_binaries.h"

namespace cachalot::simulator {

cudaFuncAttributes kernel_attributes(const GpuModel& gpu, const void* function) {
  const int own = gpu.major * 10 + gpu.minor;
  const CodeVersion code = code_for(gpu, function).value_or(CodeVersion{.binary = own, .ptx = own});
  cudaFuncAttributes attributes{};
  attributes.maxThreadsPerBlock = 1024;
  attributes.numRegs = kKernelRegisters;
  attributes.ptxVersion = code.ptx;
  attributes.binaryVersion = code.binary;
  attributes.maxDynamicSharedSizeBytes = static_cast<int>(48 * kKiB);
  return attributes;
}

int kernel_attribute(const GpuModel& gpu, const void* function, int attribute) {
  const cudaFuncAttributes all = kernel_attributes(gpu, function);
  switch (attribute) {
    case CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK:
      return all.maxThreadsPerBlock;
    case CU_FUNC_ATTRIBUTE_NUM_REGS:
      return all.numRegs;
    case CU_FUNC_ATTRIBUTE_PTX_VERSION:
      return all.ptxVersion;
    case CU_FUNC_ATTRIBUTE_BINARY_VERSION:
      return all.binaryVersion;
    case CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES:
      return all.maxDynamicSharedSizeBytes;
    default:
      break;
  }
  if (attribute < 0 || attribute >= CU_FUNC_ATTRIBUTE_MAX)
    fail("cuFuncGetAttribute", CudaCode::invalid_value, "no such attribute");
  return 0;
}

cudaError_t check_launch(const GpuModel& gpu, dim3 grid, dim3 block, std::size_t shared_bytes) {
  constexpr unsigned int kMostBlocks = 65535;  // in y and z; x is bounded by its type
  const auto volume = [](dim3 shape) { return std::uint64_t{shape.x} * shape.y * shape.z; };
  const bool empty = volume(grid) == 0 || volume(block) == 0;
  const bool wide = grid.x > INT_MAX || grid.y > kMostBlocks || grid.z > kMostBlocks;
  if (empty || wide || volume(block) > 1024 || block.z > 64) return cudaErrorInvalidConfiguration;
  return shared_bytes > gpu.shared_per_block_optin ? cudaErrorInvalidValue : cudaSuccess;
}

int active_blocks(const GpuModel& gpu, int block_threads, std::size_t dynamic_shared_bytes) {
  if (block_threads <= 0) fail("cudaOccupancy", CudaCode::invalid_value, "a block without threads");
  if (block_threads > 1024) return 0;
  const int by_threads = gpu.threads_per_multiprocessor / block_threads;
  const std::size_t by_shared =
      dynamic_shared_bytes == 0 ? SIZE_MAX : gpu.shared_per_multiprocessor / dynamic_shared_bytes;
  const int blocks = std::min(by_threads, gpu.blocks_per_multiprocessor);
  return static_cast<int>(std::min(static_cast<std::size_t>(blocks), by_shared));
}

}  // namespace cachalot::simulator
