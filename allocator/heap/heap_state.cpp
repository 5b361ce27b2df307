#include "heap/heap_state.h"

#include <utility>

#include "base/format.h"

CACHALOT_BEGIN

PrivatePool::PrivatePool(PoolId pool_id, const GrowthOfPools& growth)
    : id(pool_id),
      small(PoolKind::small, pool_id, this, growth.usual, growth.usual_in_ranges),
      large(PoolKind::large, pool_id, this, growth.usual, growth.usual_in_ranges),
      plain{BlockPool{PoolKind::small, pool_id, this, growth.segments},
            BlockPool{PoolKind::large, pool_id, this, growth.segments}} {}

std::string name_of(const PrivatePool& pool) {
  return pool.tag.empty() ? formatted("pool ({}, {})", pool.id.first, pool.id.second) : formatted("tag '{}'", pool.tag);
}

void require_awake(const PrivatePool* pool, int device, const char* purpose) {
  CACHALOT_REQUIRE(pool == nullptr || !pool->is_asleep,
                   "{} is asleep on device {}: nothing can be {} from it before restore_physical", name_of(*pool),
                   device, purpose);
}

HeapState::HeapState(std::shared_ptr<Device> of_device, PageMap& page_map, const Options& initial)
    : blocks(of_device->index(), page_map),
      device(std::move(of_device)),
      index(device->index()),
      immortal_streams(initial.immortal_streams) {}

// --- modes --------------------------------------------------------------------------------------------------------------

void HeapState::set_mode(Mode mode, bool on, const Held& held) {
  modes = on ? modes | mode : modes & ~static_cast<std::uint32_t>(mode);
  if ((mode & kNotThroughCaches) != 0) open_or_close_caches(held);
}

void HeapState::open_or_close_caches(const Held& /*held*/) {
  const bool open = wants_caches && caches != nullptr && (modes & kNotThroughCaches) == 0 && !rounds_by_divisions;
  // Released with `caches`, which may have been made just now.
  open_caches.store(open ? caches->id() : HotCache::kNone, std::memory_order_release);
}

bool HeapState::drain_caches(const Held& held) { return caches != nullptr && caches->drain(held); }

void HeapState::update_aging(const Held& held) {
  const bool on = ledger.limit(held) != HeldLimit::kNone && options.garbage_collection_threshold > 0;
  if (on) blocks.start_keeping_ages();
  set_mode(kAging, on, held);
}

bool HeapState::is_plain(const BlockPool& pool, const Held& /*held*/) const {
  const auto kind = static_cast<std::size_t>(pool.kind());
  return &pool == (pool.owner() != nullptr ? &pool.owner()->plain[kind] : &plain_pools[kind]);
}

BlockPool& HeapState::plain_beside(BlockPool& pool, const Held& /*held*/) {
  const auto kind = static_cast<std::size_t>(pool.kind());
  PrivatePool* const owner = pool.owner();
  if (pool.growth == plain_pools[kind].growth) return pool;
  return owner != nullptr ? owner->plain[kind] : plain_pools[kind];
}

PoolPair HeapState::pools_of(const PrivatePool* owner, const Held& /*held*/) const {
  if (owner != nullptr) return {&owner->small, &owner->large};
  return {&default_pools[0], &default_pools[1]};
}

BlockPool& HeapState::pool_of(PrivatePool* owner, PoolKind kind, const Held& /*held*/) {
  if (owner == nullptr) return default_pools[static_cast<std::size_t>(kind)];
  return kind == PoolKind::small ? owner->small : owner->large;
}

// --- blocks that someone observes ---------------------------------------------------------------------------------------

// The smallest blocks may be many, and none aligned: then a block with room wherever the bytes begin is found faster. All are
// looked at before memory is asked for, so that freed blocks always serve again.
Block* HeapState::find_aligned_and_age(Request request, std::size_t rounded, Alignment alignment, const Held& held) {
  constexpr int kLookedAtFirst = 64;
  if (is(kAging, held)) ++request.pool().clock;
  const FreeBins& bins = request.arena->bins;
  const auto has_room = [&](const Block& block) {
    holds(held);
    return may_use(block.size(), rounded, request.arena->rules) &&
           alignment.first_from(block.address) + rounded <= block.end();
  };
  int tries = 0;
  Block* block =
      bins.first_of_at_least(rounded, [&](const Block& each) { return ++tries > kLookedAtFirst || has_room(each); });
  if (tries <= kLookedAtFirst) return block;
  block = find_free(request, held);
  return block != nullptr ? block : bins.first_of_at_least(rounded, has_room);
}

// Hands out an aligned part of a free block. Memory before the part stays free. So does memory behind it, down to the
// smallest block: it is as likely to be merged with the part as with the memory before. Only memory that must not be
// split is handed out up to its end.
Block& HeapState::hand_out_aligned(Block& block, std::size_t rounded, std::size_t bytes, Alignment alignment,
                                   const Context& context, const Held& held) {
  const BlockPool& pool = block.arena->pool;
  const Address begin = alignment.first_from(block.address);
  const bool split = begin + rounded != block.end() && may_split(pool) && !is_oversize(rounded, block.arena->rules);
  InactiveSplit change;
  Block& part = blocks.allocate_inside(block, begin, rounded, bytes, split, change);
  counters.allocated(pool.kind(), as_signed(part.size()), as_signed(bytes));
  counters.inactive_split(pool.kind(), change.blocks, change.bytes);
  if (is_oversize(part.size(), part.arena->rules)) counters.oversize_allocation(1);
  if (is(kObserved, held)) observe_alloc(part, change, context, held);
  return part;
}

void HeapState::observe_alloc(Block& block, const InactiveSplit& split, const Context& context, const Held& held) {
  if (context) blocks.slab().detail(block).context = context;
  Change change = Observers::change_of(Change::Action::alloc, block, context);
  change.inactive_split_blocks = split.blocks;
  change.inactive_split_bytes = split.bytes;
  observers.observe(std::move(change), held);
}

void HeapState::finish_observed_free(Block& block, const Context& context, const Held& held) {
  // Before the block may be merged away.
  Change change = Observers::change_of(Change::Action::free_completed, block, context);
  forget_context(block, held);
  counters.free_completed(change.pool_kind, as_signed(block.requested));
  const InactiveSplit split = blocks.put_back(block);
  counters.inactive_split(change.pool_kind, split.blocks, split.bytes);
  change.inactive_split_blocks = split.blocks;
  change.inactive_split_bytes = split.bytes;
  observers.observe(std::move(change), held);
}

void HeapState::forget_context(const Block& block, const Held& /*held*/) {
  if (BlockDetail* detail = blocks.slab().find_detail(block)) detail->context.reset();
}

AddressRange segment_of(const Block& block) {
  const Block* head = &block;
  while (!head->prev->is_edge()) head = head->prev;
  const Block* last = &block;
  while (!last->next->is_edge()) last = last->next;
  return {head->address, last->end() - head->address};
}

std::optional<AddressRange> base_allocation(const HeapState& state, const Block& block, const void* ptr) {
  const DeviceLock lock(state.mutex);
  if (!HeapState::is_live(block, ptr)) return std::nullopt;
  return segment_of(block);
}

std::optional<BlockSizes> sizes(const HeapState& state, const Block& block, const void* ptr) {
  const DeviceLock lock(state.mutex);
  if (!HeapState::is_live(block, ptr)) return std::nullopt;
  return BlockSizes{block.requested_bytes(), block.size()};
}

Context context_of(HeapState& state, const Block& block, const void* ptr) {
  const DeviceLock lock(state.mutex);
  const BlockDetail* detail = HeapState::is_live(block, ptr) ? state.blocks.slab().find_detail(block) : nullptr;
  return detail == nullptr ? nullptr : detail->context;
}

bool sleeps(const HeapState& state, const Block& block, const void* ptr) {
  const DeviceLock lock(state.mutex);
  return HeapState::is_live(block, ptr) && is_asleep(block.arena->pool);
}

std::string describe(const HeapState& state, const void* ptr) {
  const DeviceLock lock(state.mutex);
  const Address address = as_address(ptr);
  const Block* block = state.blocks.segment_at(address);
  if (block == nullptr) return "";
  while (block->end() <= address) block = block->next;
  if (block->is_unused() || block->is_cached()) return "its memory is free (already freed?)";
  if (block->has(Block::kPending) || block->has(Block::kFreeing))
    return "it was already freed and waits for other streams";
  return formatted("it lies inside the allocation of {} bytes at {:#x}", block->requested_bytes(), block->address);
}

CACHALOT_END
