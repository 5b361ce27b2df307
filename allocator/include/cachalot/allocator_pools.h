/// @file
/// Private pools of an allocator.
#pragma once

#include "cachalot/require_cpp17.h"

#include <memory>
#include <vector>

#include "cachalot/allocator_group.h"
#include "cachalot/pool_id.h"
#include "cachalot/private_pool.h"

CACHALOT_BEGIN_API

/// AllocatorPools are the private pools of a CachingAllocator.
///
/// A pool exists from its first create_or_retain_pool or begin_allocate_to_pool. Each of these
/// adds a user and each release_pool removes one. empty_cache gives back the memory of a pool
/// without users. Functions that need an existing pool throw InvalidArgument for an unknown one.
/// The default id (0, 0) names no private pool.
class AllocatorPools : private AllocatorGroup {
 public:
  /// Makes the pool if it does not exist, and adds a user. `provider` supplies the segments of a
  /// new pool; null: the device does.
  /// Throws InvalidArgument for the default id, and for another provider than an existing pool has.
  void create_or_retain_pool(int device, PoolId pool,
                             std::shared_ptr<SegmentProvider> provider = nullptr);
  /// Redirects allocations for the streams that `filter` accepts into the pool, until
  /// end_allocate_to_pool, and adds a user. The latest redirection that accepts a stream counts.
  /// `filter` runs under the device's lock and must not call the allocator.
  /// Throws InvalidArgument if allocations are redirected into this pool already.
  void begin_allocate_to_pool(int device, PoolId pool, StreamFilter filter, RedirectFor reason);
  /// Ends the redirection into the pool; its user stays. Throws InvalidArgument if there is none.
  void end_allocate_to_pool(int device, PoolId pool);
  /// Tells that a stream of the device captures a graph from now on, whatever is redirected: the
  /// same as a redirection for a capture, without one. Captures are counted.
  void begin_capture(int device);
  /// Tells that a capture has ended. Does nothing if none was begun.
  void end_capture(int device);
  /// Removes a user. Throws InvalidArgument if the pool has none.
  void release_pool(int device, PoolId pool);
  /// Returns the number of users; 0 for an unknown pool.
  int pool_use_count(int device, PoolId pool) const;
  /// Allows or forbids that free blocks of the pool serve requests of the default pool as a last
  /// resort.
  void set_use_on_oom(int device, PoolId pool, bool use_on_oom);
  /// Makes the pool hand out blocks whole from now on: it splits none.
  void set_no_split(int device, PoolId pool);
  /// Returns true if the pool's live allocations are exactly `live`.
  bool pool_has_exactly(int device, PoolId pool, const std::vector<void*>& live) const;
  /// Returns the pool's blocks as they are now.
  /// Throws InvalidArgument if the pool has no users, or a freed block still waits for other
  /// streams.
  PoolCheckpoint checkpoint_pool(int device, PoolId pool) const;
  /// Returns the pool to a checkpoint: ends all live allocations of the pool and makes those of the
  /// checkpoint.
  /// Throws InvalidArgument if the pool is asleep, if a block was recorded on another stream or
  /// waits for one, and for a checkpoint that does not fit the pool's segments. Nothing has then
  /// changed.
  RestoreResult restore_pool(int device, const PoolCheckpoint& checkpoint);

 protected:
  /// Makes the group for the allocator with this state.
  explicit AllocatorPools(AllocatorState& state) : AllocatorGroup(state) {}
  ~AllocatorPools() = default;
};

CACHALOT_END_API
