// The intermediates of a loop, reused instead of allocated: a hundred steps, one allocation for each shape. On a GPU when
// there is one.
#include <cstdio>
#include <memory>
#include <vector>

#include "cachalot/pool_set.h"
#include "cachalot/simulated_device.h"

int main() {
  std::vector<std::shared_ptr<cachalot::Device>> devices = cachalot::cuda_devices();
  if (devices.empty()) devices.push_back(std::make_shared<cachalot::SimulatedDevice>());
  const auto allocator = std::make_shared<cachalot::CachingAllocator>(devices);
  cachalot::PoolSet pools(allocator, /*byte_budget=*/std::size_t{1} << 30);

  const cachalot::Stream stream = devices[0]->new_stream();
  for (int step = 0; step < 100; ++step) {
    const cachalot::PooledTensor paths = pools.acquire({{1000, 1000}, cachalot::DType::float32}, stream);
    const cachalot::PooledTensor payoffs = pools.acquire({{1000}, cachalot::DType::float64}, stream);
    // … kernels on `stream` that write paths.data() and read it into payoffs.data() …
  }  // both come back; the next step's work on the stream follows this one's by itself

  const cachalot::PoolStats stats = pools.stats();
  std::printf("%llu tensors from %llu allocations, reuse rate %.2f\n", static_cast<unsigned long long>(stats.acquires),
              static_cast<unsigned long long>(stats.allocations), stats.reuse_rate());
  std::printf("at most %zu bytes held\n", stats.peak_bytes);
  pools.stream_ends(stream);
  allocator->stream_ends(stream);
  devices[0]->stream_destroy(stream);
}
