// CUDA C++17 with an installed cachalot, by nvcc: a kernel over allocated memory that takes slots, and CUB's scratch. Without a
// GPU the same calls go to the simulated device, and no kernel is launched.
#include <cstdio>
#include <cub/device/device_reduce.cuh>
#include <memory>

#include "cachalot/caching_allocator.h"
#include "cachalot/caching_device_allocator.h"
#include "cachalot/cub_scratch.h"
#include "cachalot/simulated_device.h"
#include "cachalot/slot_pool.cuh"
#include "cachalot/slot_pool.h"
#include "cachalot/tensor_pool.h"
#include "cachalot/thrust.h"

static_assert(__cplusplus >= 201703L && __cplusplus < 202002L, "cachalot's targets ask for C++17, no more and no less");

namespace {

__global__ void take_and_give(cachalot::SlotPoolView slots, unsigned* ones) {
  void* const slot = slots.take();
  ones[threadIdx.x] = slot != nullptr ? 1 : 0;
  slots.give(slot);
}

constexpr int kThreads = 64;

bool kernels_are_right(cachalot::CachingAllocator& allocator, const cachalot::SlotPool& slots, cudaStream_t stream) {
  auto* const ones = static_cast<unsigned*>(allocator.allocate((kThreads + 1) * sizeof(unsigned), 0, stream));
  take_and_give<<<1, kThreads, 0, stream>>>(slots.view(), ones);
  cachalot::CubScratch scratch(allocator, stream);
  scratch([&](void* temp, std::size_t& bytes) {
    return cub::DeviceReduce::Sum(temp, bytes, ones, ones + kThreads, kThreads, stream);
  });
  unsigned sum = 0;
  const cudaError_t copied = cudaMemcpyAsync(&sum, ones + kThreads, sizeof(sum), cudaMemcpyDeviceToHost, stream);
  const bool is_done = copied == cudaSuccess && cudaStreamSynchronize(stream) == cudaSuccess;
  allocator.deallocate(ones);
  return is_done && sum == kThreads;
}

}  // namespace

int main() {
  auto devices = cachalot::cuda_devices();
  const bool has_gpu = !devices.empty();
  if (!has_gpu) devices.push_back(std::make_shared<cachalot::SimulatedDevice>());
  cachalot::CachingAllocator allocator(devices);
  const cachalot::SlotPool slots(allocator, kThreads, 16);
  cachalot::TensorPool pool(allocator, {{1024, 1024}, cachalot::DType::float32});
  const bool pooled = pool.acquire().data() != nullptr && pool.stats().allocations == 1;
  const bool computed = !has_gpu || kernels_are_right(allocator, slots, nullptr);
  cachalot::CachingDeviceAllocator cache(allocator);
  void* block = nullptr;
  const bool cached = cache.DeviceAllocate(0, &block, 1000) == cudaSuccess && cache.DeviceFree(0, block) == cudaSuccess;
  cachalot::ThrustAllocator<int> ints(allocator);
  ints.deallocate(ints.allocate(100), 100);
  const bool given = slots.counters().live == 0;
  std::printf("CUDA: pooled %s, computed %s, given back %s\n", pooled ? "right" : "WRONG",
              !has_gpu   ? "nothing (no GPU)"
              : computed ? "right"
                         : "WRONG",
              given ? "right" : "WRONG");
  return pooled && computed && given && cached ? 0 : 1;
}
