// The memory of one stream-ordered pool (cudaMallocAsync): a model, since CUDA documents what a pool does, but not how.
//
// A pool takes memory from the device in regions of a multiple of 32 MiB: reserved memory of pools is such a multiple (2,518 times
// 32 MiB in https://github.com/rapidsai/rmm/issues/1245). Blocks are cut of the smallest free piece of a region that holds them,
// at multiples of 512 bytes, and free neighbours merge. So memory that is free in many regions does not serve a large block, as
// reported there and in https://github.com/pytorch/pytorch/issues/110194. Streams do not matter: by default a pool gives memory of
// one stream to another, which then waits (cudaMemPoolReuseAllowInternalDependencies).
#pragma once

#include <cstddef>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "cachalot/device.h"

namespace cachalot::simulator {

class PoolMemory {
 public:
  static constexpr std::size_t kRegionUnit = std::size_t{32} << 20;
  static constexpr std::size_t kAlignment = 512;

  // `bytes` of a free piece, a multiple of kAlignment; nullopt: no piece holds them.
  std::optional<Address> take(std::size_t bytes);
  // What take() returned, with its size.
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

}  // namespace cachalot::simulator
