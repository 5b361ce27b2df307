// TensorRT's memory from the allocator. It needs TensorRT's headers alone: this program calls the allocator as TensorRT does.
// On a GPU when there is one.
#include <cstdio>
#include <memory>
#include <vector>

#include "cachalot/simulated_device.h"
#include "cachalot/tensorrt.h"

namespace {

// An inference as TensorRT does it: activations of each layer on a stream.
bool infer(nvinfer1::IGpuAllocator& memory, cudaStream_t stream) {
  for (std::size_t bytes = 1 << 10; bytes <= (1 << 24); bytes *= 4) {
    void* const activations = memory.allocateAsync(bytes, 256, 0, stream);
    if (activations == nullptr) return false;
    // … kernels of the layer on `stream` …
    if (!memory.deallocateAsync(activations, stream)) return false;
  }
  return true;
}

}  // namespace

int main() {
  std::vector<std::shared_ptr<cachalot::Device>> devices = cachalot::cuda_devices();
  if (devices.empty()) devices.push_back(std::make_shared<cachalot::SimulatedDevice>());
  cachalot::CachingAllocator allocator(devices);
  cachalot::TensorRtAllocator memory(allocator, /*device=*/0,
                                     [](const std::exception& error) { std::printf("refused: %s\n", error.what()); });
  // runtime->setGpuAllocator(&memory);

  bool is_done = infer(memory, nullptr);
  const auto first = allocator.memory_stats().num_device_alloc;
  for (int i = 0; i < 100 && is_done; ++i) is_done = infer(memory, nullptr);
  const auto later = allocator.memory_stats().num_device_alloc - first;
  std::printf("the first inference took %lld device allocations, the next hundred %lld\n",
              static_cast<long long>(first), static_cast<long long>(later));
  const bool is_refused = memory.allocateAsync(100, 1000, 0, nullptr) == nullptr;
  return is_done && later == 0 && is_refused ? 0 : 1;
}
