// The name of a private pool, as PyTorch's MempoolId_t: {n, 0} is a CUDA graph's own pool, {0, n} a user's MemPool, and
// {n, n} the pool of the n-th tag (CachingAllocator::begin_tagged).
#pragma once

#include <compare>
#include <cstdint>

namespace cachalot {

struct PoolId {
  std::uint64_t first = 0;
  std::uint64_t second = 0;
  bool is_default() const { return first == 0 && second == 0; }
  friend auto operator<=>(const PoolId&, const PoolId&) = default;
};

enum class PoolKind : std::uint8_t { small, large };  // blocks of up to 1 MiB, or larger ones

}  // namespace cachalot
