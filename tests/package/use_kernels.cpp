// The kernels' host twins from an installed package, on the simulated device.
#include <cstdio>
#include <memory>

#include "cachalot/cub_scratch.h"
#include "cachalot/kernels.h"
#include "cachalot/simulated_device.h"
#include "cachalot/slot_pool.h"

int main() {
  cachalot::CachingAllocator allocator({std::make_shared<cachalot::SimulatedDevice>()});
  const cachalot::Allocation block = cachalot::allocate_owned(allocator, 4096, 0, nullptr);
  const cachalot::PatternSpan span{reinterpret_cast<cachalot::Address>(block.get()), 4096, 1};
  const auto kernels = cachalot::kernels_for(allocator.device());
  kernels->fill_pattern(nullptr, span);
  const bool filled = !kernels->verify_pattern(nullptr, span);
  const bool empty = cachalot::SlotPool(allocator, 100, 16).counters().live == 0;
  cachalot::CubScratch scratch(allocator);
  scratch([](void*, std::size_t& bytes) { return static_cast<int>(bytes = 0); });
  std::printf("kernels: filled %s, slots %s\n", filled ? "right" : "WRONG", empty ? "right" : "WRONG");
  return filled && empty ? 0 : 1;
}
