// Stream-ordered memory pools (cudaMallocAsync). A pool keeps what is freed to it until the next synchronization, which leaves no
// more than its release threshold of it: regions without a block go (PoolMemory).
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <unordered_map>
#include <utility>

#include "cachalot/device.h"
#include "simulator/base/lock.h"
#include "simulator/base/registry.h"
#include "simulator/base/report.h"
#include "simulator/base/watch.h"
#include "simulator/models/cuda_abi.h"
#include "simulator/state/captures.h"
#include "simulator/state/copies.h"
#include "simulator/state/devices.h"
#include "simulator/state/stream_state.h"
#include "simulator/state/use_checks.h"

namespace cachalot::simulator {

// The memory of one stream-ordered pool (cudaMallocAsync): a model, since CUDA documents what a pool does, but not how.
//
// A pool takes memory from the device in regions of a multiple of 32 MiB: reserved memory of pools is such a multiple (2,518 times
// 32 MiB in https://github.com/rapidsai/rmm/issues/1245). Blocks are cut of the smallest free piece of a region that holds them,
// at multiples of 512 bytes, and free neighbours merge. So memory that is free in many regions does not serve a large block, as
// reported there and in https://github.com/pytorch/pytorch/issues/110194. Streams do not matter: by default a pool gives memory of
// one stream to another, which then waits (cudaMemPoolReuseAllowInternalDependencies).
class PoolMemory {
 public:
  static constexpr std::size_t kRegionUnit = std::size_t{32} << 20;
  static constexpr std::size_t kAlignment = 512;

  // `bytes` of a free piece, a multiple of kAlignment; nullopt: no piece holds them.
  std::optional<Address> take(std::size_t bytes);
  // Gives back memory that take() returned, with its size.
  void give_back(Address address, std::size_t bytes);

  struct Region {
    Address address = 0;
    std::size_t bytes = 0;
  };
  // A region of the device, free as a whole.
  void add(Region region);
  // The largest region without a block goes; nullopt: there is none.
  std::optional<Region> remove_idle();
  std::size_t reserved_bytes() const { return reserved_bytes_; }

 private:
  void insert(Address address, std::size_t bytes);
  void erase(std::map<Address, std::size_t>::iterator piece);

  std::map<Address, std::size_t> regions_;
  std::map<Address, std::size_t> free_;                // pieces
  std::set<std::pair<std::size_t, Address>> by_size_;  // the same
  std::size_t reserved_bytes_ = 0;
};

struct MemoryPool {
  int device = 0;
  std::set<int> peers;     // devices that may use its memory, beside its own
  bool destroyed = false;  // by the program; it lives on until the last of its blocks is freed
  std::uint64_t release_threshold = 0;
  int reuse_follow_event_dependencies = 1;
  int reuse_allow_opportunistic = 1;
  int reuse_allow_internal_dependencies = 1;
  std::size_t reserved_peak_bytes = 0;
  std::size_t used_bytes = 0;  // of blocks, as they were asked for
  std::size_t used_peak_bytes = 0;
  PoolMemory memory;
};

class Pools {
 public:
  struct Block {
    MemoryPool* pool = nullptr;
    std::size_t bytes = 0;  // as it was asked for
  };

  // Makes the devices' default pools.
  Pools(Report& report, Watch& watch, Devices& devices, Captures& captures, UseChecks& uses, StreamWrites& writes);

  MemoryPool& make(int device) CACHALOT_LOCKED;
  // Throws cudaErrorInvalidResourceHandle, also for a destroyed one.
  MemoryPool& at(cudaMemPool_t handle) CACHALOT_LOCKED;
  static cudaMemPool_t handle(const MemoryPool& pool) { return Registry<MemoryPool, cudaMemPool_t>::handle(pool); }
  void destroy(MemoryPool& pool) CACHALOT_LOCKED;
  // Destroys the device's pools. Memory allocated from them goes with the device's memory.
  void destroy_all(DeviceState& device) CACHALOT_LOCKED;

  // Returns null if memory runs out.
  void* malloc(MemoryPool& pool, StreamState& stream, std::size_t bytes) CACHALOT_LOCKED;
  cudaError_t free(Address address) CACHALOT_LOCKED;
  // Returns the block of any pool that is handed out at the address, or null.
  const Block* find(Address address) const CACHALOT_LOCKED;

  void trim(MemoryPool& pool, std::size_t to_bytes) CACHALOT_LOCKED;
  // Each pool gives back what it keeps above its threshold.
  void trim_all() CACHALOT_LOCKED;

 private:
  bool grow(MemoryPool& pool, std::size_t rounded) CACHALOT_LOCKED;
  void release(MemoryPool& pool, const PoolMemory::Region& region) CACHALOT_LOCKED;

  Report& report_ CACHALOT_UNDER_LOCK;
  Watch& watch_ CACHALOT_UNDER_LOCK;
  Devices& devices_;
  Captures& captures_;
  UseChecks& uses_;
  StreamWrites& writes_;
  Registry<MemoryPool, cudaMemPool_t> pools_ CACHALOT_UNDER_LOCK;
  std::unordered_map<Address, Block> blocks_ CACHALOT_UNDER_LOCK;  // handed out
};

}  // namespace cachalot::simulator
