#include "cachalot/allocator_pools.h"

#include <utility>

#include "device/addresses.h"
#include "groups/allocator_state.h"

CACHALOT_BEGIN

namespace {

// Runs `action`. If it refuses a private pool that all its users have released, the guard reports it.
template <typename Action>
auto with_pool(const AllocatorState& state, int device, PoolId pool, Action action) {
  DeviceAllocator& allocator = state.at(device);
  try {
    return action(allocator);
  } catch (const InvalidArgument& refusal) {
    for (Guard* guard : state.guards(device)) guard->report_released_pool(pool, refusal.what());
    throw;
  }
}

}  // namespace

void AllocatorPools::create_or_retain_pool(int device, PoolId pool, std::shared_ptr<SegmentProvider> provider) {
  state_.at(device).pools.create_or_retain_pool(pool, std::move(provider));
  for (Guard* guard : state_.guards(device)) guard->note_users(pool);
}

void AllocatorPools::begin_allocate_to_pool(int device, PoolId pool, StreamFilter filter, RedirectFor reason) {
  DeviceAllocator& allocator = state_.at(device);
  for (Guard* guard : state_.guards(device)) guard->report_released_pool(pool, "begin_allocate_to_pool");
  allocator.pools.begin_allocate_to_pool(pool, std::move(filter), reason);
  for (Guard* guard : state_.guards(device)) guard->note_users(pool);
}

// What gives back does nothing in a forked child, as frees: destructors call it.
void AllocatorPools::end_allocate_to_pool(int device, PoolId pool) {
  if (state_.is_inherited()) return;
  with_pool(state_, device, pool, [&](DeviceAllocator& allocator) { allocator.pools.end_allocate_to_pool(pool); });
}

void AllocatorPools::begin_capture(int device) { state_.at(device).pools.begin_capture(); }
void AllocatorPools::end_capture(int device) {
  if (!state_.is_inherited()) state_.at(device).pools.end_capture();
}

void AllocatorPools::release_pool(int device, PoolId pool) {
  if (state_.is_inherited()) return;
  with_pool(state_, device, pool, [&](DeviceAllocator& allocator) { allocator.pools.release_pool(pool); });
  for (Guard* guard : state_.guards(device)) guard->note_users(pool);
}

int AllocatorPools::pool_use_count(int device, PoolId pool) const {
  return state_.at(device).pools.pool_use_count(pool);
}
void AllocatorPools::set_use_on_oom(int device, PoolId pool, bool use_on_oom) {
  state_.at(device).pools.set_use_on_oom(pool, use_on_oom);
}
void AllocatorPools::set_no_split(int device, PoolId pool) {
  with_pool(state_, device, pool, [&](DeviceAllocator& allocator) { allocator.pools.set_no_split(pool); });
}

// What is in quarantine is no allocation of the pool, for the user.
bool AllocatorPools::pool_has_exactly(int device, PoolId pool, const std::vector<void*>& live) const {
  if (!state_.is_guarded()) return state_.at(device).checkpoints.pool_has_exactly(pool, live);
  for (Guard* guard : state_.guards(device)) guard->drain();
  const Guard& guard = *state_.guards(device).front();
  std::vector<void*> in_heap;
  in_heap.reserve(live.size());
  for (const void* ptr : live) in_heap.push_back(as_pointer(guard.in_heap(as_address(ptr))));
  return with_pool(state_, device, pool,
                   [&](DeviceAllocator& heap) { return heap.checkpoints.pool_has_exactly(pool, in_heap); });
}

PoolCheckpoint AllocatorPools::checkpoint_pool(int device, PoolId pool) const {
  for (Guard* guard : state_.guards(device)) guard->drain();
  return with_pool(state_, device, pool,
                   [&](DeviceAllocator& allocator) { return allocator.checkpoints.checkpoint_pool(pool); });
}

RestoreResult AllocatorPools::restore_pool(int device, const PoolCheckpoint& checkpoint) {
  return with_pool(state_, device, checkpoint.pool, [&](DeviceAllocator& allocator) {
    return state_.is_guarded() ? state_.guards(device).front()->restore(checkpoint)
                               : allocator.checkpoints.restore_pool(checkpoint);
  });
}

CACHALOT_END
