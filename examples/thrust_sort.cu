// Thrust in memory of the allocator: a vector, and the temporary memory of a sort, which after the first round takes nothing
// from the device.
#include <thrust/device_vector.h>
#include <thrust/sort.h>

#include <cstdio>

#include "cachalot/thrust.h"

int main() {
  cachalot::CachingAllocator allocator(cachalot::cuda_devices());
  if (allocator.device_count() == 0) {
    std::puts("no GPU here");
    return 0;
  }
  cudaStream_t stream = nullptr;
  if (cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) != cudaSuccess) return 1;
  std::size_t first = 0;
  std::size_t later = 0;
  {
    using OnStream = cachalot::ThrustAllocator<int>;
    thrust::device_vector<int, OnStream> keys(1 << 20, OnStream(allocator, stream));
    cudaStreamSynchronize(nullptr);  // where the vector was filled
    const auto policy = cachalot::thrust_policy_nosync(allocator, stream);
    thrust::sort(policy, keys.begin(), keys.end());
    first = allocator.memory_reserved();
    for (int round = 0; round < 10; ++round) thrust::sort(policy, keys.begin(), keys.end());
    later = allocator.memory_reserved();
  }
  std::printf("reserved after one sort %zu bytes, after eleven %zu bytes\n", first, later);
  std::printf("allocated at the end %zu bytes\n", allocator.memory_allocated());
  allocator.stream_ends(stream);
  return cudaStreamDestroy(stream) == cudaSuccess && first == later && allocator.memory_allocated() == 0 ? 0 : 1;
}
