#include "simulator/models/launched_kernels.h"

#include <algorithm>
#include <climits>
#include <cstdint>
#include <cstring>
#include <unordered_map>
#include <vector>

#include "base/bytes.h"
#include "base/locks.h"
#include "device/cuda_codes.h"

namespace cachalot::simulator {
namespace {

struct Table {
  Mutex mutex;
  std::unordered_map<const void*, const void*> wrappers CACHALOT_GUARDED_BY(mutex);                // by function
  std::unordered_map<const void*, std::vector<const void*>> functions CACHALOT_GUARDED_BY(mutex);  // by wrapper
};

// Never destroyed: libraries are unregistered by static destructors.
Table& table() {
  static auto& instance = *new Table;
  return instance;
}

// NVIDIA documents but the first of these. They are as nvcc 13.0 writes them and PyTorch 2.11 has them: a wrapper, which
// points to a head, and behind that images, each with a head of its own.
struct Wrapper {  // __fatBinC_Wrapper_t of fatbinary_section.h
  static constexpr int kMagic = 0x466243b1;
  int magic;
  int version;
  const void* images;
  const void* more;
};

struct ImagesHead {
  static constexpr std::uint32_t kMagic = 0xba55ed50;
  std::uint32_t magic;
  std::uint16_t version;
  std::uint16_t head_bytes;
  std::uint64_t bytes;  // of the images, with their heads
};

struct ImageHead {
  static constexpr std::uint16_t kPtx = 1;
  static constexpr std::uint16_t kBinary = 2;
  std::uint16_t kind;
  std::uint16_t version;
  std::uint32_t head_bytes;
  std::uint64_t bytes;
  std::uint32_t unused[3];
  std::uint32_t capability;  // after 12 bytes of sizes and versions
};

// The newest that the GPU can run, of each kind; 0: none.
struct Newest {
  int binary = 0;
  int ptx = 0;
};

void note(Newest& newest, const GpuModel& gpu, const ImageHead& image) {
  const int capability = static_cast<int>(image.capability);
  if (capability > gpu.major * 10 + gpu.minor) return;
  if (image.kind == ImageHead::kPtx) newest.ptx = std::max(newest.ptx, capability);
  if (image.kind == ImageHead::kBinary && capability / 10 == gpu.major)
    newest.binary = std::max(newest.binary, capability);
}

Newest newest_in(const GpuModel& gpu, const void* wrapper) {
  Newest newest;
  const auto& wrapped = *static_cast<const Wrapper*>(wrapper);
  if (wrapped.magic != Wrapper::kMagic || !wrapped.images) return newest;
  ImagesHead head;
  std::memcpy(&head, wrapped.images, sizeof(head));
  if (head.magic != ImagesHead::kMagic) return newest;
  const char* at = static_cast<const char*>(wrapped.images) + head.head_bytes;
  const char* const end = at + head.bytes;
  for (ImageHead image{}; static_cast<std::size_t>(end - at) >= sizeof(image); at += image.head_bytes + image.bytes) {
    std::memcpy(&image, at, sizeof(image));
    if (image.head_bytes < sizeof(image) || image.bytes > static_cast<std::size_t>(end - at) - image.head_bytes) break;
    note(newest, gpu, image);
  }
  return newest;
}

const void* wrapper_of(const void* function) {
  const Lock lock(table().mutex);
  const auto at = table().wrappers.find(function);
  return at == table().wrappers.end() ? nullptr : at->second;
}

}  // namespace

void register_kernel(const void* wrapper, const void* function) {
  const Lock lock(table().mutex);
  table().wrappers[function] = wrapper;
  table().functions[wrapper].push_back(function);
}

void forget_kernels(const void* wrapper) {
  const Lock lock(table().mutex);
  const auto forgotten = table().functions.find(wrapper);
  if (forgotten == table().functions.end()) return;
  for (const void* function : forgotten->second) table().wrappers.erase(function);
  table().functions.erase(forgotten);
}

std::optional<CodeVersion> code_for(const GpuModel& gpu, const void* function) {
  const void* wrapper = wrapper_of(function);
  if (!wrapper) return std::nullopt;
  const Newest newest = newest_in(gpu, wrapper);
  if (newest.binary > 0) return CodeVersion{.binary = newest.binary, .ptx = newest.binary};
  if (newest.ptx > 0) return CodeVersion{.binary = gpu.major * 10 + gpu.minor, .ptx = newest.ptx};
  return std::nullopt;
}

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
