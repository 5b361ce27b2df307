// The C++ API from an installed package, on the simulated device.
#include <cstdio>
#include <memory>
#include <vector>

#include "cachalot/buffers.h"
#include "cachalot/caching_allocator.h"
#include "cachalot/pinned_host_allocator.h"
#include "cachalot/simulated_device.h"
#include "cachalot/version.h"

static_assert(__cplusplus == 201703L, "the headers need no more than C++17");

int main() {
  cachalot::CachingAllocator allocator({std::make_shared<cachalot::SimulatedDevice>()});
  void* block = allocator.allocate(std::size_t{3} << 20);
  const bool held = block != nullptr && allocator.memory_allocated() == std::size_t{3} << 20 &&
                    allocator.memory_reserved() == std::size_t{20} << 20;
  allocator.deallocate(block);
  allocator.empty_cache();
  const bool given_back = allocator.memory_allocated() == 0 && allocator.memory_reserved() == 0;
  const cachalot::Buffer<int> numbers(allocator, std::vector<int>{1, 2, 3});
  const bool copied = numbers.to_host() == std::vector<int>{1, 2, 3};
  std::printf("cachalot %s\n", cachalot::version());
  std::printf("C++: held %s, given back %s\n", held ? "right" : "WRONG", given_back ? "right" : "WRONG");
  std::printf("C++: copied %s\n", copied ? "right" : "WRONG");
  return held && given_back && copied ? 0 : 1;
}
