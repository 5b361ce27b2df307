// A memory resource of an installed cachalot, with the CCCL of the CUDA toolkit, over the GPU or a simulated device.
#include <cstdio>
#include <memory>
#include <vector>

#include "cachalot/mr.h"
#include "cachalot/simulated_device.h"

int main() {
  auto devices = cachalot::cuda_devices();
  if (devices.empty()) devices.push_back(std::make_shared<cachalot::SimulatedDevice>());
  const auto allocator = std::make_shared<cachalot::CachingAllocator>(devices);
  const cachalot::MemoryResource resource(allocator);
  const cachalot::ResourceRequest request{1 << 20, 2 << 20, nullptr, false};
  void* const ptr = cachalot::allocate_from(resource, request);
  cachalot::deallocate_to(resource, ptr, request);
  const auto blocks = allocator->memory_stats().allocation.all;
  std::printf("%lld allocation through the installed memory resource\n", static_cast<long long>(blocks.allocated));
  return blocks.allocated == 1 && blocks.current == 0 ? 0 : 1;
}
