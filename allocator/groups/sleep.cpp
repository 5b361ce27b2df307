#include "cachalot/allocator_sleep.h"

#include <optional>
#include <string>
#include <utility>

#include "base/check.h"
#include "groups/allocator_state.h"
#include "heap/slow_work_range.h"

CACHALOT_BEGIN

namespace {

// Those of selected(device) that have the pool. Refuses before any of them has done anything.
std::vector<DeviceAllocator*> sleepers(const AllocatorState& state, PoolId pool, int device, const char* call) {
  std::vector<DeviceAllocator*> allocators = state.selected(device);
  std::erase_if(allocators,
                [&](const DeviceAllocator* allocator) { return !allocator->sleeping.may_sleep(pool, call); });
  return allocators;
}

void wake(const AllocatorState& state, const std::vector<DeviceAllocator*>& allocators, PoolId pool) {
  state.tell_after([&] {
    for (DeviceAllocator* allocator : allocators) {
      const SlowWorkRange range(allocator->state.observers.slow_work_observer(),
                                {SlowWork::Kind::restore_physical, allocator->state.index});
      for (Guard* guard : state.guards(allocator->state.index)) guard->drain();
      allocator->sleeping.restore_physical(pool);
      for (Guard* guard : state.guards(allocator->state.index)) guard->wake();
      allocator->tell_if_crossed();
    }
  });
}

}  // namespace

void AllocatorSleep::begin_tagged(std::string_view tag, int device) {
  CACHALOT_REQUIRE(!tag.empty(), "begin_tagged: the tag is '{}'; it must not be empty", tag);
  const std::vector<DeviceAllocator*> allocators = state_.selected(device);
  const PoolId pool = state_.tags.make(tag);
  for (DeviceAllocator* allocator : allocators) allocator->pools.begin_tagged(pool, tag);
}

void AllocatorSleep::end_tagged(std::string_view tag, int device) {
  state_.require_own_process();
  const PoolId pool = state_.tags.pool_of(tag);
  for (DeviceAllocator* allocator : state_.selected(device)) allocator->pools.end_tagged(pool, tag);
}

std::vector<TagMemory> AllocatorSleep::tags() const {
  state_.require_own_process();
  std::vector<TagMemory> result;
  for (const auto& [tag, pool] : state_.tags.all()) {
    for (const auto& allocator : state_.devices()) {
      std::optional<TagMemory> memory = allocator->inspection.tag_memory(pool);
      if (!memory || (!memory->is_asleep && memory->reserved_bytes == 0)) continue;
      memory->tag = tag;
      memory->device = allocator->state.index;
      result.push_back(*std::move(memory));
    }
  }
  return result;
}

void AllocatorSleep::release_physical(std::string_view tag, bool save, int device) {
  const std::vector<DeviceAllocator*> allocators = state_.selected(device);
  for (const DeviceAllocator* allocator : allocators) allocator->sleeping.require_pages("release_physical");
  const PoolId pool = state_.tags.pool_of(tag);
  for (DeviceAllocator* allocator : allocators) allocator->pools.create_tag(pool, tag);
  release_physical(pool, save, device);
}

void AllocatorSleep::restore_physical(std::string_view tag, int device) {
  for (const DeviceAllocator* allocator : state_.selected(device))
    allocator->sleeping.require_pages("restore_physical");
  const PoolId pool = state_.tags.pool_of(tag);
  wake(state_, sleepers(state_, pool, device, "restore_physical"), pool);
}

void AllocatorSleep::release_tags(Span<const std::string_view> tags, bool save, int device) {
  for (const std::string_view tag : tags) state_.tags.pool_of(tag);
  for (const std::string_view tag : tags) release_physical(tag, save, device);
}

void AllocatorSleep::restore_tags(Span<const std::string_view> tags, int device) {
  for (const std::string_view tag : tags) state_.tags.pool_of(tag);
  for (const std::string_view tag : tags) restore_physical(tag, device);
}

void AllocatorSleep::release_physical(PoolId pool, bool save, int device) {
  const std::vector<DeviceAllocator*> allocators = sleepers(state_, pool, device, "release_physical");
  CACHALOT_REQUIRE(!allocators.empty(), "release_physical: there is no pool ({}, {})", pool.first, pool.second);
  state_.tell_after([&] {
    for (DeviceAllocator* allocator : allocators) {
      const SlowWorkRange range(allocator->state.observers.slow_work_observer(),
                                {SlowWork::Kind::release_physical, allocator->state.index});
      const auto release = [&] { allocator->sleeping.release_physical(pool, save); };
      if (!state_.is_guarded()) release();
      for (Guard* guard : state_.guards(allocator->state.index)) guard->put_to_sleep(release);
    }
  });
}

void AllocatorSleep::restore_physical(PoolId pool, int device) {
  const std::vector<DeviceAllocator*> allocators = sleepers(state_, pool, device, "restore_physical");
  CACHALOT_REQUIRE(!allocators.empty(), "restore_physical: there is no pool ({}, {})", pool.first, pool.second);
  wake(state_, allocators, pool);
}

CACHALOT_END
