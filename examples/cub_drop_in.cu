// The replacement of cub::CachingDeviceAllocator: the same calls, in memory whose statistics can be seen.
#include <cuda_runtime_api.h>

#include <cstdio>
#include <memory>

#include "cachalot/caching_device_allocator.h"

namespace {

bool is_success(cudaError_t error, const char* call) {
  if (error != cudaSuccess) std::printf("%s: %s\n", call, cudaGetErrorString(error));
  return error == cudaSuccess;
}

}  // namespace

int main() {
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
    std::puts("no GPU here");
    return 0;
  }
  cachalot::CachingAllocator heap(cachalot::cuda_devices());
  cachalot::CachingDeviceAllocator allocator(heap);  // without an argument: over a heap of the process
  void* first = nullptr;
  void* second = nullptr;
  if (!is_success(allocator.DeviceAllocate(&first, 1000), "DeviceAllocate")) return 1;
  if (!is_success(allocator.DeviceFree(first), "DeviceFree")) return 1;
  if (!is_success(allocator.DeviceAllocate(&second, 2000), "DeviceAllocate")) return 1;
  std::printf("1000 and 2000 bytes are of the bin of 4096 bytes: %s block\n", first == second ? "the same" : "another");
  std::printf("cached %zu bytes, live %zu bytes\n", allocator.cached_bytes[0].free, allocator.cached_bytes[0].live);

  void* none = nullptr;
  const cudaError_t error = allocator.DeviceAllocate(&none, std::size_t{1} << 50);
  std::printf("a PiB: %s, and the pointer is %s\n", cudaGetErrorName(error), none == nullptr ? "null" : "not null");
  std::printf("the heap behind it: %zu bytes allocated\n", heap.memory_allocated());
  const bool is_freed = is_success(allocator.DeviceFree(second), "DeviceFree");
  return is_freed && first == second && error == cudaErrorMemoryAllocation && none == nullptr ? 0 : 1;
}
