// Live memory between free memory keeps segments from going back to the device. Behind handles it can be moved
// together: one tensor in eight is left, and the table says what the device has to give for them before and after. On a
// GPU when there is one.
#include <cstdio>
#include <memory>
#include <vector>

#include "cachalot/relocatable_heap.h"
#include "cachalot/simulated_device.h"
#include "cachalot/tensor_pool.h"

namespace {

constexpr std::size_t kMiB = std::size_t{1} << 20;
constexpr std::size_t kTensors = 256;
constexpr std::size_t kBytes = kMiB / 2;
constexpr std::size_t kLeft = 8;  // one in so many

std::vector<std::shared_ptr<cachalot::Device>> devices() {
  std::vector<std::shared_ptr<cachalot::Device>> devices = cachalot::cuda_devices();
  if (devices.empty()) devices.push_back(std::make_shared<cachalot::SimulatedDevice>());
  return devices;
}

// Compacts, and prints a row; false: nothing was gained.
template <typename Subject>
bool compact(const char* name, Subject& subject, cachalot::CachingAllocator& allocator) {
  allocator.empty_cache();
  const std::size_t before = allocator.memory_reserved();
  const cachalot::CompactReport report = subject.compact();
  allocator.empty_cache();  // a pool gives back to the allocator, not to the device
  const std::size_t after = allocator.memory_reserved();
  std::printf("%-16s%16zu%16zu%16zu%16zu\n", name, before / kMiB, after / kMiB, report.blocks_moved,
              report.bytes_moved / kMiB);
  return after < before;
}

// One tensor in eight, wherever the others were.
template <typename Tensors>
void thin_out(Tensors& tensors) {
  std::erase_if(tensors, [i = std::size_t{0}](const auto&) mutable { return i++ % kLeft != 0; });
}

bool relocatable_heap(const char* heap) {
  cachalot::CachingAllocator allocator(devices(), cachalot::parse_options(heap));
  cachalot::RelocatableHeap memory(allocator);
  std::vector<cachalot::Relocatable> tensors;
  for (std::size_t i = 0; i < kTensors; ++i) tensors.push_back(memory.allocate(kBytes));
  thin_out(tensors);
  return compact(heap, memory, allocator);
}

bool tensor_pool() {
  cachalot::CachingAllocator allocator(devices());
  cachalot::TensorPool pool(allocator, {{kBytes}, cachalot::DType::uint8},
                            {.growth_step = 16, .mover = cachalot::kernels_for(allocator.device())});
  std::vector<cachalot::PooledTensor> tensors;
  for (std::size_t i = 0; i < kTensors; ++i) tensors.push_back(pool.acquire());
  thin_out(tensors);
  return compact("TensorPool", pool, allocator);
}

}  // namespace

int main() {
  std::printf("%zu MiB in use\n", kTensors * kBytes / kLeft / kMiB);
  std::printf("%-16s%16s%16s%16s%16s\n", "", "reserved, MiB", "after compact", "blocks moved", "MiB moved");
  const bool segments = relocatable_heap("heap:segments");
  const bool pages = relocatable_heap("heap:pages");
  const bool pool = tensor_pool();
  return segments && pages && pool ? 0 : 1;
}
