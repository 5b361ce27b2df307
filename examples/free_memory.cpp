// How much more memory can a program get? Allocates half of a GPU's free memory, then more than all: that fails with an exception
// also on an integrated GPU, whose memory is the machine's (Jetson, GB10). On a simulated device if there is no GPU.
#include <cstddef>
#include <cstdio>
#include <memory>
#include <vector>

#include "cachalot/caching_allocator.h"
#include "cachalot/events.h"
#include "cachalot/simulated_device.h"

int main() {
  std::vector<std::shared_ptr<cachalot::Device>> devices = cachalot::cuda_devices();
  if (devices.empty()) devices.push_back(std::make_shared<cachalot::SimulatedDevice>());
  cachalot::CachingAllocator allocator(devices);

  const cachalot::MemoryInfo memory = devices[0]->memory_info();
  std::printf("%s: %zu of %zu MiB are free\n", devices[0]->properties().name.c_str(), memory.free_bytes >> 20,
              memory.total_bytes >> 20);
  void* const half = allocator.allocate(memory.free_bytes / 2);
  try {
    allocator.deallocate(allocator.allocate(memory.total_bytes));
    std::puts("a GPU cannot give more than it has");
    return 1;
  } catch (const cachalot::OutOfMemory&) {
    std::puts("out of memory, as it should be; the program goes on");
  }
  allocator.deallocate(half);
}
