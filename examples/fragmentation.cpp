// Where does the memory go? Frees every second one of a row of tensors and asks. On a GPU when there is one.
#include <cstddef>
#include <cstdio>
#include <memory>
#include <vector>

#include "cachalot/caching_allocator.h"
#include "cachalot/simulated_device.h"

int main() {
  std::vector<std::shared_ptr<cachalot::Device>> devices = cachalot::cuda_devices();
  if (devices.empty()) devices.push_back(std::make_shared<cachalot::SimulatedDevice>());
  cachalot::CachingAllocator allocator(devices);

  constexpr std::size_t kTensorBytes = std::size_t{3} << 20;
  std::vector<void*> tensors(100);
  for (void*& tensor : tensors) tensor = allocator.allocate(kTensorBytes);
  for (std::size_t i = 0; i < tensors.size(); i += 2) allocator.deallocate(tensors[i]);

  const cachalot::Fragmentation figures = allocator.fragmentation();
  std::printf("%zu bytes allocated, %zu reserved\n", figures.allocated_bytes, figures.reserved_bytes);
  std::printf("%zu bytes free in %zu blocks, the largest of %zu\n", figures.free_bytes, figures.free_blocks,
              figures.largest_free_bytes);
  std::printf("internal fragmentation %.3f, external %.3f\n", figures.internal, figures.external);
}
