#include "growth/checkpoints.h"

#include <unordered_set>
#include <utility>

#include "base/check.h"
#include "device/addresses.h"
#include "growth/growth.h"

CACHALOT_BEGIN

Vector<Block*> Checkpoints::heads_of(const PrivatePool& pool, const Held& /*held*/) const {
  Vector<Block*> heads;
  for (const auto& [address, head] : state_.blocks.segments()) {
    if (head->arena->pool.owner() == &pool) heads.push_back(head);
  }
  return heads;
}

bool Checkpoints::pool_has_exactly(PoolId id, const std::vector<void*>& live) const {
  const DeviceLock lock(state_.mutex);
  const PrivatePool& pool = pools_.existing(id, "Could not find pool of id", lock);
  const Set<Address> expected = [&] {
    Set<Address> addresses;
    for (const void* ptr : live) addresses.insert(as_address(ptr));
    return addresses;
  }();
  std::size_t found = 0;
  for (const Block* block : heads_of(pool, lock)) {
    for (; !block->is_edge(); block = block->next) {
      if (!block->has(Block::kAllocated)) continue;
      if (!expected.contains(block->address)) return false;
      ++found;
    }
  }
  return found == expected.size();
}

PoolCheckpoint Checkpoints::checkpoint_pool(PoolId id) const {
  const DeviceLock lock(state_.mutex);
  const PrivatePool& pool = pools_.existing(id, "Could not find pool of id", lock);
  CACHALOT_REQUIRE(pool.use_count > 0, "Not expected to checkpoint freeable graph: pool ({}, {})", id.first, id.second);
  PoolCheckpoint checkpoint{id, {}};
  for (const Block* head : heads_of(pool, lock)) {
    PoolCheckpoint::Segment segment{head->arena->stream.handle, head->arena->pool.kind(), {}};
    for (const Block* block = head; !block->is_edge(); block = block->next) {
      CACHALOT_REQUIRE(!block->has(Block::kPending), "Events should have synchronized when checkpointing block {:#x}",
                       block->address);
      segment.blocks.push_back({block->address, block->size(), block->has(Block::kAllocated)});
    }
    checkpoint.segments.push_back(std::move(segment));
  }
  return checkpoint;
}

void Checkpoints::require_no_pending_frees(const PrivatePool& pool, const Held& held) const {
  for (const Block* block : heads_of(pool, held)) {
    for (; !block->is_edge(); block = block->next) {
      CACHALOT_REQUIRE(block->is_free() || (block->has(Block::kAllocated) && block->uses.head == nullptr),
                       "Events should have synchronized when setting checkpointed block {:#x}", block->address);
    }
  }
}

// Everything that could stop the restore half-way is checked first.
void Checkpoints::require_restorable(const PrivatePool& pool, const PoolCheckpoint& checkpoint,
                                     const Held& held) const {
  require_no_pending_frees(pool, held);
  Set<Address> seen;
  for (const PoolCheckpoint::Segment& segment : checkpoint.segments) {
    CACHALOT_REQUIRE(!segment.blocks.empty(), "a checkpointed segment of pool ({}, {}) has no blocks", pool.id.first,
                     pool.id.second);
    const Address address = segment.blocks.front().address;
    CACHALOT_REQUIRE(seen.insert(address).second, "checkpointed segment {:#x} is listed twice", address);
    const auto found = state_.blocks.segments().find(address);
    CACHALOT_REQUIRE(found != state_.blocks.segments().end() && found->second->arena->pool.owner() == &pool,
                     "could not find segment {:#x} in pool ({}, {})", address, pool.id.first, pool.id.second);
    std::size_t bytes = 0;
    for (const Block* block = found->second; !block->is_edge(); block = block->next) bytes += block->size();
    Address end = address;
    for (const PoolCheckpoint::Block& block : segment.blocks) {
      CACHALOT_REQUIRE(block.address == end && block.size != 0 && block.size % kBlockGranularity == 0,
                       "checkpointed block {:#x} does not tile its segment", block.address);
      end += block.size;
    }
    // It may have grown since.
    const bool has_grown = found->second->arena->pool.growth->may_extend_segments() && end < address + bytes;
    CACHALOT_REQUIRE(end == address + bytes || has_grown, "checkpointed segment {:#x} has {} bytes, not {}", address,
                     bytes, end - address);
  }
}

// Restores a checkpoint as PyTorch does: frees all live blocks of the pool, takes every block of the checkpoint, frees
// those it shows as free.
RestoreResult Checkpoints::restore_pool(const PoolCheckpoint& checkpoint) {
  const Operation lock(state_.mutex);
  Growing growing(state_.growth_mutex, lock);  // the growth strategy's tables change
  PrivatePool& pool = pools_.existing(checkpoint.pool, "Could not find private pool id", growing);
  require_awake(&pool, state_.index);
  require_restorable(pool, checkpoint, growing);
  caches_.gather(growing);
  RestoreResult result;
  Vector<Block*> live;
  for (Block* block : heads_of(pool, growing)) {
    for (; !block->is_edge(); block = block->next) {
      if (block->has(Block::kAllocated)) live.push_back(block);
    }
  }
  for (Block* block : live) {
    result.freed.push_back(as_pointer(block->address));
    frees_.free(*block, nullptr, growing);
  }
  pool.large.growth->separate_kinds(pool, growing);
  for (const PoolCheckpoint::Segment& segment : checkpoint.segments) {
    restore_segment(*state_.blocks.segments().at(segment.blocks.front().address), segment, result, growing);
  }
  return result;
}

void Checkpoints::restore_segment(Block& head, const PoolCheckpoint::Segment& segment, RestoreResult& result,
                                  Held& held) {
  Vector<Block*> blocks;
  Block* block = &head;
  for (const PoolCheckpoint::Block& state : segment.blocks) {
    blocks.push_back(block);
    const bool split = block->size() > state.size;  // the rest is the next ones'
    state_.hand_out(*block, state.size, state.size, split, nullptr, held);
    block = block->next;
  }
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    if (segment.blocks[i].allocated) {
      result.created.push_back(as_pointer(blocks[i]->address));
    } else {
      frees_.free(*blocks[i], nullptr, held);
    }
  }
}

CACHALOT_END
