// Checkpoints return a private pool to an earlier state, as PyTorch's CUDA graph trees do between runs of their graphs.
#pragma once

#include <vector>

#include "base/host_memory.h"
#include "cachalot/private_pool.h"
#include "heap/cache_bridge.h"
#include "heap/heap_state.h"
#include "heap/pending_frees.h"
#include "heap/private_pools.h"

CACHALOT_BEGIN

class Checkpoints {
 public:
  Checkpoints(HeapState& state, PrivatePools& pools, PendingFrees& frees, CacheBridge& caches)
      : state_(state), pools_(pools), frees_(frees), caches_(caches) {}
  Checkpoints(const Checkpoints&) = delete;
  Checkpoints& operator=(const Checkpoints&) = delete;

  // These take the lock themselves. Contracts are those of CachingAllocator's methods of the same names.
  bool pool_has_exactly(PoolId id, const std::vector<void*>& live) const;
  PoolCheckpoint checkpoint_pool(PoolId id) const;
  RestoreResult restore_pool(const PoolCheckpoint& checkpoint);

 private:
  Vector<Block*> heads_of(const PrivatePool& pool, const Held& held) const CACHALOT_HELD;
  void require_restorable(const PrivatePool& pool, const PoolCheckpoint& checkpoint,
                          const Held& held) const CACHALOT_HELD;
  void require_no_pending_frees(const PrivatePool& pool, const Held& held) const CACHALOT_HELD;
  void restore_segment(Block& head, const PoolCheckpoint::Segment& segment, RestoreResult& result,
                       Held& held) CACHALOT_HELD;

  HeapState& state_;
  PrivatePools& pools_;
  PendingFrees& frees_;
  CacheBridge& caches_;
};

CACHALOT_END
