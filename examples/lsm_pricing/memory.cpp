#include "examples/lsm_pricing/memory.h"

#include <fmt/format.h>

#include <vector>

namespace lsm {

namespace {

const cachalot::TensorSpec kSpec{{1000, 1000}, cachalot::DType::float32};

}  // namespace

MemoryUse use_of(cachalot::CachingAllocator& allocator, const cachalot::PoolStats& pool) {
  const cachalot::DeviceStats stats = allocator.memory_stats();
  return {.pool = pool,
          .peak_reserved_bytes = static_cast<std::size_t>(stats.reserved_bytes.all.peak),
          .device_allocations = stats.num_device_alloc};
}

MemoryUse kept_tensors(const std::shared_ptr<cachalot::Device>& device) {
  cachalot::CachingAllocator allocator({device});
  cachalot::TensorPool pool(allocator, kSpec);
  std::vector<cachalot::PooledTensor> kept;
  for (int i = 0; i < kTensors; ++i) kept.push_back(pool.acquire());
  return use_of(allocator, pool.stats());
}

MemoryUse reused_tensors(const std::shared_ptr<cachalot::Device>& device) {
  cachalot::CachingAllocator allocator({device});
  cachalot::TensorPool pool(allocator, kSpec);
  for (int i = 0; i < kTensors; ++i) pool.acquire();
  return use_of(allocator, pool.stats());
}

void print_memory_head(const std::string& title) {
  fmt::print("\n{:<38}{:>9}{:>13}{:>9}{:>9}{:>15}{:>15}{:>12}\n", title, "tensors", "allocations", "avoided", "reuse",
             "bytes of pool", "peak reserved", "cudaMalloc");
}

void print_memory(const std::string& name, const MemoryUse& use) {
  fmt::print("{:<38}{:>9}{:>13}{:>9}{:>9.2f}{:>15}{:>15}{:>12}\n", name, use.pool.acquires, use.pool.allocations,
             use.pool.allocations_avoided(), use.pool.reuse_rate(), use.pool.peak_bytes, use.peak_reserved_bytes,
             use.device_allocations);
}

}  // namespace lsm
