// CUB's algorithms take a MemoryResource as their environment: their temporary storage comes from it. CCCL 3.4 and newer.
// check_conformance.cmake compiles and runs it.
#include <cstdio>
#include <cub/device/device_reduce.cuh>
#include <memory>

#include "cachalot/mr.h"

int main() {
  constexpr int kCount = 1 << 20;
  const auto allocator = std::make_shared<cachalot::CachingAllocator>(cachalot::cuda_devices());
  const cachalot::MemoryResource resource(allocator);
  float* const in = static_cast<float*>(allocator->allocate(kCount * sizeof(float)));
  float* const out = static_cast<float*>(allocator->allocate(sizeof(float)));
  int failures = 0;
  const auto before = allocator->memory_stats().allocation.all.allocated;
  if (cub::DeviceReduce::Sum(in, out, kCount, resource) != cudaSuccess) ++failures;
  if (allocator->memory_stats().allocation.all.allocated != before + 1) ++failures;
  if (allocator->memory_stats().allocation.all.current != 2) ++failures;
  std::printf("CCCL %d, C++ %ld: %d failures\n", CCCL_VERSION, static_cast<long>(__cplusplus), failures);
  return failures == 0 ? 0 : 1;
}
