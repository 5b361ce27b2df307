// The name of a private pool, as PyTorch's MempoolId_t: {n, 0} is a CUDA graph's own pool, {0, n} a user's MemPool, and
// {n, n} the pool of the n-th tag (CachingAllocator::begin_tagged).
#pragma once

#include "cachalot/require_cpp17.h"

#include <cstdint>

namespace cachalot {

struct PoolId {
  std::uint64_t first = 0;
  std::uint64_t second = 0;
  bool is_default() const { return first == 0 && second == 0; }

  friend constexpr bool operator==(const PoolId& a, const PoolId& b) {
    return a.first == b.first && a.second == b.second;
  }
  friend constexpr bool operator!=(const PoolId& a, const PoolId& b) { return !(a == b); }
  friend constexpr bool operator<(const PoolId& a, const PoolId& b) {
    return a.first != b.first ? a.first < b.first : a.second < b.second;
  }
  friend constexpr bool operator>(const PoolId& a, const PoolId& b) { return b < a; }
  friend constexpr bool operator<=(const PoolId& a, const PoolId& b) { return !(b < a); }
  friend constexpr bool operator>=(const PoolId& a, const PoolId& b) { return !(a < b); }
};

enum class PoolKind : std::uint8_t { small, large };  // blocks of up to 1 MiB, or larger ones

}  // namespace cachalot
