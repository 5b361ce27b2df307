/// @file
/// The group of the threads of a warp that call together, for kernels.
#pragma once

#include "cachalot/require_cpp17.h"

#include <cstdint>

CACHALOT_BEGIN_API

/// A WarpGroup is a group (SlotPoolView) of the threads of a warp that are at the same place. They
/// act as one, by warp-aggregated atomics.
///
/// Requires: compute capability 7.0 or later; all members call each method. A value is the same for
/// all members, except rank().
class WarpGroup {
 public:
  using Word = unsigned long long;  ///< the type of the atomics

  /// Makes the group of the threads that are active here.
  __device__ WarpGroup() : WarpGroup(__activemask()) {}

  /// Returns the number of threads in the group.
  __device__ unsigned size() const { return static_cast<unsigned>(__popc(members_)); }
  /// Returns the place of the calling thread in the group.
  __device__ unsigned rank() const {
    return static_cast<unsigned>(__popc(members_ & lanes_below()));
  }
  /// Returns where to begin to search, spread over 32 bits, so that warps keep away from each
  /// other.
  __device__ std::uint32_t start() const {
    const unsigned block = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
    const unsigned thread = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
    return broadcast((block * 32 + thread / 32) * 0x9e3779b9u);
  }
  /// Returns the group of the members that call with the same value.
  __device__ WarpGroup with_same(std::uint64_t value) const {
    return WarpGroup(__match_any_sync(members_, value));
  }
  /// Returns the bits that any member has.
  __device__ Word either(Word bits) const {
    Word all = 0;
    for (unsigned rest = members_; rest != 0; rest &= rest - 1)
      all |= __shfl_sync(members_, bits, __ffs(rest) - 1);
    return all;
  }

  /// Returns the word.
  __device__ Word load(const Word* word) const {
    return by_leader([=] { return *const_cast<const volatile Word*>(word); });
  }
  /// Adds to the word. Returns its previous value.
  __device__ Word fetch_add(Word* word, Word value) const {
    return by_leader([=] { return atomicAdd(word, value); });
  }
  /// Sets bits of the word. Returns its previous value.
  __device__ Word fetch_or(Word* word, Word bits) const {
    return by_leader([=] { return atomicOr(word, bits); });
  }
  /// Keeps only these bits of the word. Returns its previous value.
  __device__ Word fetch_and(Word* word, Word bits) const {
    return by_leader([=] { return atomicAnd(word, bits); });
  }
  /// Raises the word to at least `value`.
  __device__ void fetch_max(Word* word, Word value) const {
    by_leader([=] { return atomicMax(word, value); });
  }

  /// Makes earlier writes of other groups visible, after a take.
  __device__ void acquire() const {
    __syncwarp(members_);
    __threadfence();
  }
  /// Makes this group's writes visible to others, before a give.
  __device__ void release() const {
    __threadfence();
    __syncwarp(members_);
  }

 private:
  __device__ explicit WarpGroup(unsigned members) : members_(members) {}

  __device__ static unsigned lane() {
    unsigned lane;
    asm("mov.u32 %0, %%laneid;" : "=r"(lane));
    return lane;
  }
  __device__ static unsigned lanes_below() { return (1u << lane()) - 1; }
  template <typename Value>
  __device__ Value broadcast(Value value) const {
    return __shfl_sync(members_, value, __ffs(members_) - 1);
  }
  template <typename Action>
  __device__ Word by_leader(Action action) const {
    return broadcast(rank() == 0 ? action() : Word{0});
  }

  unsigned members_;  // a bit for each lane
};

CACHALOT_END_API
