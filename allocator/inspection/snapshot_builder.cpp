#include "inspection/inspection.h"

CACHALOT_BEGIN

SegmentSnapshot Inspection::picture(const Block& head, const Held& held) const {
  using State = BlockSnapshot::State;
  const auto context_of = [&](const Block& block, Context BlockDetail::*which) {
    holds(held);
    const BlockDetail* detail = state_.blocks.slab().find_detail(block);
    return detail == nullptr ? nullptr : detail->*which;
  };
  const BlockPool& pool = head.arena->pool;
  SegmentSnapshot segment;
  segment.device = state_.index;
  segment.address = head.address;
  segment.stream = head.arena->stream.handle;
  segment.segment_type = pool.kind();
  segment.segment_pool_id = pool.id();
  segment.is_expandable = pool.growth->is_expandable();
  segment.context = context_of(head, &BlockDetail::segment_context);
  for (const Block* block = &head; !block->is_edge(); block = block->next) {
    const bool is_idle = block->is_unused() || block->is_cached();
    const State state = block->is_live() ? State::active_allocated
                        : is_idle        ? State::inactive
                                         : State::active_pending_free;
    const std::size_t requested = is_idle ? std::size_t{block->requested} : block->requested_bytes();
    segment.total_size += block->size();
    if (state == State::active_allocated) segment.allocated_size += block->size();
    if (state != State::inactive) segment.active_size += block->size();
    if (state != State::inactive) segment.requested_size += requested;
    const Context context = state == State::inactive ? nullptr : context_of(*block, &BlockDetail::context);
    segment.blocks.push_back({block->address, block->size(), requested, state, context});
  }
  if (is_asleep(pool)) {
    const Address end = segment.address + segment.total_size;
    segment.asleep_size = pool.growth->asleep_bytes(segment.address, end, held);
  }
  return segment;
}

void Inspection::snapshot_into(Snapshot& snapshot, PoolId pool, bool include_traces) {
  const DeviceLock lock(state_.mutex);
  if (include_traces) snapshot.device_traces.push_back(state_.observers.entries(lock));
  const ThreadCaches::Recall hold(state_.caches.get());
  std::size_t active_bytes = 0;
  for (const auto& [address, head] : state_.blocks.segments()) {
    if (!pool.is_default() && head->arena->pool.id() != pool) continue;
    snapshot.segments.push_back(picture(*head, lock));
    active_bytes += snapshot.segments.back().active_size;
  }
  state_.observers.observe({.action = Change::Action::snapshot, .bytes = active_bytes, .pool = pool}, lock);
}

std::optional<TagMemory> Inspection::tag_memory(PoolId id) const {
  const DeviceLock lock(state_.mutex);
  const PrivatePool* const pool = parts_.pools.find(id, lock);
  if (pool == nullptr) return std::nullopt;
  const ThreadCaches::Recall hold(state_.caches.get());
  TagMemory memory;
  memory.is_asleep = pool->is_asleep;
  memory.pool = id;
  for (const auto& [address, head] : state_.blocks.segments()) {
    if (head->arena->pool.id() != id) continue;
    const SegmentSnapshot segment = picture(*head, lock);
    memory.allocated_bytes += segment.allocated_size;
    memory.requested_bytes += segment.requested_size;
    memory.reserved_bytes += segment.total_size - segment.asleep_size;
    memory.asleep_bytes += segment.asleep_size;
  }
  return memory;
}

CACHALOT_END
