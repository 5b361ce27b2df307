// CUB's single-phase algorithms in memory of the allocator. Needs CCCL 3.1 or newer (CUDA 13.1).
#include <cstdio>
#include <cub/device/device_reduce.cuh>
#include <vector>

#include "cachalot/buffers.h"
#include "cachalot/cub_environment.h"

int main() {
  cachalot::CachingAllocator allocator(cachalot::cuda_devices());
  if (allocator.device_count() == 0) {
    std::puts("no GPU here");
    return 0;
  }
  constexpr int kCount = 1 << 20;
  const cachalot::Buffer<int> in(allocator, std::vector<int>(kCount, 3));
  const cachalot::Scalar<int> out(allocator, 0, /*stream=*/nullptr);
  const auto before = allocator.memory_stats().allocation.all.allocated;
  const cachalot::CubEnvironment environment(allocator);
  const cudaError_t error = cub::DeviceReduce::Sum(in.data(), out.data(), kCount, environment);
  const auto temporary = allocator.memory_stats().allocation.all.allocated - before;
  const int sum = out.value();
  std::printf("%s after %lld allocations of temporary memory\n", cudaGetErrorName(error),
              static_cast<long long>(temporary));
  std::puts(sum == 3 * kCount ? "the sum is right" : sum == 0 ? "kernels compute nothing here" : "the sum is WRONG");
  return error == cudaSuccess && temporary > 0 && (sum == 3 * kCount || sum == 0) ? 0 : 1;
}
