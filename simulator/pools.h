// Stream-ordered memory pools (cudaMallocAsync). A pool keeps what is freed to it, whole, until the next synchronization
// leaves no more than its release threshold; a request is served by a kept block of its rounded size.
// The process's mutex guards it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <unordered_map>
#include <vector>

#include "cachalot/device.h"
#include "simulator/abi.h"
#include "simulator/registry.h"

namespace cachalot::simulator {

struct MemoryPool {
  int device = 0;
  bool destroyed = false;  // by the program; it lives on until the last of its blocks is freed
  std::uint64_t release_threshold = 0;
  int reuse_follow_event_dependencies = 1;
  int reuse_allow_opportunistic = 1;
  int reuse_allow_internal_dependencies = 1;
  std::size_t reserved_bytes = 0;
  std::size_t reserved_peak_bytes = 0;
  std::size_t used_bytes = 0;
  std::size_t used_peak_bytes = 0;
  std::multimap<std::size_t, Address> kept;  // by rounded size
};

class Pools {
 public:
  Registry<MemoryPool, cudaMemPool_t> registry;

  // Blocks handed out, of all pools.
  struct Block {
    MemoryPool* pool = nullptr;
    std::size_t bytes = 0;  // rounded
  };
  std::unordered_map<Address, Block> blocks;
};

}  // namespace cachalot::simulator
