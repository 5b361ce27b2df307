// Owners of memory: an array, a value, and pinned host memory in a container of std::pmr. On a GPU when there is one.
#include <cstdio>
#include <memory>
#include <memory_resource>
#include <numeric>
#include <utility>
#include <vector>

#include "cachalot/buffers.h"
#include "cachalot/pinned_host_allocator.h"
#include "cachalot/simulated_device.h"

namespace {

// Copies the numbers 1, 2, 3 … to the device, grows the array there, and returns its sum.
long long sum_of_copies(cachalot::CachingAllocator& allocator, cachalot::PinnedMemoryResource& pinned) {
  std::pmr::vector<int> batch(1000, &pinned);
  std::iota(batch.begin(), batch.end(), 1);

  cachalot::Buffer<int> numbers(allocator, batch.size());
  numbers.copy_from_host_async(batch);                 // pinned memory: the host does not wait
  pinned.host().record_stream(batch.data(), nullptr);  // so the batch may go before the copy is done
  numbers.resize(2 * batch.size());                    // keeps the elements
  numbers.copy_from_device({numbers.data(), batch.size()}, batch.size());

  const std::vector<int> held = numbers.to_host();  // waits for the stream
  return std::accumulate(held.begin(), held.end(), 0LL);
}

}  // namespace

int main() {
  std::vector<std::shared_ptr<cachalot::Device>> devices = cachalot::cuda_devices();
  if (devices.empty()) devices.push_back(std::make_shared<cachalot::SimulatedDevice>());
  cachalot::CachingAllocator allocator(devices);
  cachalot::PinnedHostAllocator host(devices.front());
  cachalot::PinnedMemoryResource pinned(host);

  const long long sum = sum_of_copies(allocator, pinned);
  std::printf("the sum of two copies of 1 to 1000 is %lld\n", sum);

  cachalot::Scalar<long long> total(allocator, sum, /*stream=*/nullptr);
  const cachalot::Scalar<long long> moved = std::move(total);
  std::printf("a scalar holds %lld, and %zu bytes are allocated\n", moved.value(), allocator.memory_allocated());
  try {
    cachalot::Buffer<double>(allocator, ~std::size_t{0});
  } catch (const cachalot::InvalidArgument& error) {
    std::printf("refused: %s\n", error.what());
  }
  return sum == 1001000 && moved.value() == sum ? 0 : 1;
}
