/// @file
/// The pools of tensors of many kinds, within one budget.
#pragma once

#include "cachalot/require_cpp17.h"

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cachalot/tensor_pool.h"

CACHALOT_BEGIN_API

/// A PoolSet hands out tensors of any shape, type and device within one budget of bytes: for
/// intermediate results whose shapes vary.
///
///     cachalot::PoolSet pools(allocator, std::size_t{8} << 30);
///     cachalot::PooledTensor t = pools.acquire({{batch, 1024}, cachalot::DType::float16}, stream);
///
/// Each spec has a TensorPool of its own, made when the spec is first asked for. If a pool must
/// grow and the budget has no room, free slots of the least recently used pools go back to the
/// allocator until it has. The host waits for no device for that.
///
/// Thread safety: every method may be called from any thread at any time. For tensors see
/// PooledTensor.
/// Errors: those of TensorPool; OutOfMemory also if the budget has no room after all free slots
/// have gone.
class PoolSet {
 public:
  /// Makes a set of pools whose allocations never exceed `byte_budget` bytes in all, on all
  /// devices. `options` are those of each pool.
  /// Throws InvalidArgument for a budget of 0, and for options that have initial_slots or
  /// contradict each other.
  PoolSet(std::shared_ptr<CachingAllocator> allocator, std::size_t byte_budget,
          const TensorPoolOptions& options = {});
  /// Makes a set over an allocator of the caller, which may be destroyed first, as in TensorPool.
  /// Otherwise as the constructor above.
  PoolSet(CachingAllocator& allocator, std::size_t byte_budget,
          const TensorPoolOptions& options = {});
  /// Destroys the pools. Tensors that are in use keep their pools' memory until the last of them is
  /// returned.
  ~PoolSet();
  PoolSet(const PoolSet&) = delete;
  PoolSet& operator=(const PoolSet&) = delete;

  /// Returns a tensor of the spec's pool, as TensorPool::acquire does.
  /// Throws InvalidArgument also for an invalid spec.
  PooledTensor acquire(const TensorSpec& spec, Stream stream = nullptr);
  /// Returns a tensor of the spec's pool, as TensorPool::try_acquire does.
  std::optional<PooledTensor> try_acquire(const TensorSpec& spec, Stream stream = nullptr);
  /// Declares the end of a stream, as TensorPool::stream_ends, to all pools.
  void stream_ends(Stream stream);
  /// Gives the allocations without a tensor in use back to the allocator, in all pools. Returns
  /// their bytes.
  std::size_t trim();

  /// Returns the budget in bytes.
  std::size_t byte_budget() const;
  /// Returns the bytes that all pools hold from the allocator, those of tensors that have outlived
  /// their pools included.
  std::size_t bytes() const;
  /// Returns the sums over all pools. peak_bytes is exact. peak_live is the sum of the pools' own
  /// peaks, and so an upper bound.
  PoolStats stats() const;
  /// Returns the statistics of the spec's pool; all zeros for a spec that was never asked for.
  PoolStats stats(const TensorSpec& spec) const;
  /// Returns the statistics of each pool, the least recently used first.
  std::vector<std::pair<TensorSpec, PoolStats>> stats_by_spec() const;
  /// Walks all tables. Returns "" or the first broken invariant. For tests.
  /// Requires: no other thread acquires or releases meanwhile.
  std::string validate() const;

 private:
  class State;
  PoolSet(std::shared_ptr<CachingAllocator> owned, CachingAllocator& allocator,
          std::size_t byte_budget, const TensorPoolOptions& options);
  TensorPool& pool_of(const TensorSpec& spec);

  std::shared_ptr<State>
      state_;  // shared with pools that still have tensors in use, for the budget
};

CACHALOT_END_API
