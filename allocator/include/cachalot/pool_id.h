/// @file
/// The names of pools.
#pragma once

#include "cachalot/require_cpp17.h"

#include <cstdint>

CACHALOT_BEGIN_API

/// A PoolId names a private pool, as PyTorch's MempoolId_t does.
///
/// - {0, 0} is the default pool.
/// - {n, 0} is the private pool of a CUDA graph (PyTorch's graph_pool_handle).
/// - {0, n} is a MemPool of the user.
/// - {n, n} is the pool of the n-th tag (CachingAllocator::begin_tagged).
struct PoolId {
  std::uint64_t first = 0;   ///< MempoolId_t's first number
  std::uint64_t second = 0;  ///< MempoolId_t's second number
  /// Returns true for the default pool, {0, 0}.
  bool is_default() const { return first == 0 && second == 0; }

  /// Compares both numbers; ids are ordered by `first`, then by `second`.
  friend constexpr bool operator==(const PoolId& a, const PoolId& b) {
    return a.first == b.first && a.second == b.second;
  }
  /// Returns !(a == b).
  friend constexpr bool operator!=(const PoolId& a, const PoolId& b) { return !(a == b); }
  /// Returns true if `a` is ordered before `b`.
  friend constexpr bool operator<(const PoolId& a, const PoolId& b) {
    return a.first != b.first ? a.first < b.first : a.second < b.second;
  }
  /// Returns b < a.
  friend constexpr bool operator>(const PoolId& a, const PoolId& b) { return b < a; }
  /// Returns !(b < a).
  friend constexpr bool operator<=(const PoolId& a, const PoolId& b) { return !(b < a); }
  /// Returns !(a < b).
  friend constexpr bool operator>=(const PoolId& a, const PoolId& b) { return !(a < b); }
};

/// The size class of a block.
enum class PoolKind : std::uint8_t {
  small,  ///< blocks of up to 1 MiB
  large,  ///< blocks above 1 MiB
};

CACHALOT_END_API
