#include "cachalot/caching_allocator.h"
#include "cachalot/simulated_device.h"

// Returns the bytes that a shelf of 3 MiB takes: a segment of 20 MiB.
std::size_t shelf_bytes() {
  cachalot::CachingAllocator allocator({std::make_shared<cachalot::SimulatedDevice>()});
  allocator.allocate(std::size_t{3} << 20);
  return allocator.memory_reserved();
}
