// Tensor pools from an installed package, on the simulated device.
#include <cstdio>
#include <memory>

#include "cachalot/dlpack.h"
#include "cachalot/simulated_device.h"
#include "cachalot/tensor_pool.h"

int main() {
  cachalot::CachingAllocator allocator({std::make_shared<cachalot::SimulatedDevice>()});
  cachalot::TensorPool pool(allocator, {{16, 16}, cachalot::DType::float32});
  const void* first = pool.acquire().data();
  const bool reused = pool.acquire().data() == first && pool.stats().allocations == 1;
  const cachalot::ForeignTensor exported = cachalot::from_dlpack(cachalot::to_dlpack(pool.acquire()));
  const bool shared = exported.data() == first && exported.spec() == pool.spec();
  std::printf("pool: reused %s, shared %s\n", reused ? "right" : "WRONG", shared ? "right" : "WRONG");
  return reused && shared ? 0 : 1;
}
