// Compares the memory of kept tensors with that of equal tensors from a pool.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "cachalot/pool_set.h"

namespace lsm {

struct MemoryUse {
  cachalot::PoolStats pool;
  std::size_t peak_reserved_bytes = 0;  // of the allocator
  std::int64_t device_allocations = 0;  // cudaMalloc
};

MemoryUse use_of(cachalot::CachingAllocator& allocator, const cachalot::PoolStats& pool);

// A hundred tensors of 1000 x 1000 floats, a step of 1000 paths each, in a fresh allocator: all kept, or each given back
// before the next is taken.
inline constexpr int kTensors = 100;
MemoryUse kept_tensors(const std::shared_ptr<cachalot::Device>& device);
MemoryUse reused_tensors(const std::shared_ptr<cachalot::Device>& device);

void print_memory_head(const std::string& title);
void print_memory(const std::string& name, const MemoryUse& use);

}  // namespace lsm
