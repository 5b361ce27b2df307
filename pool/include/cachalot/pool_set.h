// Pools for tensors of many kinds, within one budget: for intermediates whose shapes vary.
//
//   cachalot::PoolSet pools(allocator, /*byte_budget=*/std::size_t{8} << 30);
//   cachalot::PooledTensor t = pools.acquire({{batch, 1024}, cachalot::DType::float16}, stream);
//
// Each spec has a TensorPool of its own, made when it is first asked for. Where one must grow and the budget has no
// room, free slots of the pools that were used least recently go back to the allocator until it has. Nothing waits for
// that on the host.
//
// Thread safety: every method from any thread at any time; tensors as tensor_pool.h says.
// Errors: as tensor_pool.h says; OutOfMemory, too, where the budget has no room though all that is free has gone.
#pragma once

#include "cachalot/require_cpp17.h"

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cachalot/tensor_pool.h"

namespace cachalot {

class PoolSet {
 public:
  // `byte_budget` > 0 is for all pools on all devices together. `options` are those of each pool; initial_slots is 0.
  // Throws InvalidArgument.
  PoolSet(std::shared_ptr<CachingAllocator> allocator, std::size_t byte_budget, const TensorPoolOptions& options = {});
  // The caller's allocator, which may go first, as in TensorPool.
  PoolSet(CachingAllocator& allocator, std::size_t byte_budget, const TensorPoolOptions& options = {});
  // Tensors that are out keep their pools' memory until the last of them comes back.
  ~PoolSet();
  PoolSet(const PoolSet&) = delete;
  PoolSet& operator=(const PoolSet&) = delete;

  // As TensorPool's, of the spec's pool.
  PooledTensor acquire(const TensorSpec& spec, Stream stream = nullptr);
  std::optional<PooledTensor> try_acquire(const TensorSpec& spec, Stream stream = nullptr);
  // All pools give back the allocations that have no tensor in use; how many bytes.
  std::size_t trim();

  std::size_t byte_budget() const;
  // Held from the allocator by all pools, tensors that have outlived their pools included.
  std::size_t bytes() const;
  // Sums over all pools. peak_bytes is exact; peak_live is the sum of the pools' own peaks, and so an upper bound.
  PoolStats stats() const;
  // Of one pool; all zeros if its spec was never asked for.
  PoolStats stats(const TensorSpec& spec) const;
  std::vector<std::pair<TensorSpec, PoolStats>> stats_by_spec() const;
  // Walks everything; returns "" or the first broken rule. For tests, while no other thread acquires or releases.
  std::string validate() const;

 private:
  class State;
  PoolSet(std::shared_ptr<CachingAllocator> owned, CachingAllocator& allocator, std::size_t byte_budget,
          const TensorPoolOptions& options);
  TensorPool& pool_of(const TensorSpec& spec);

  std::shared_ptr<State> state_;  // pools that still have tensors out keep it, for the budget
};

}  // namespace cachalot
