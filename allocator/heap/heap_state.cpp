#include "heap/heap_state.h"

#include <utility>

CACHALOT_BEGIN

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
  const bool on = ledger.limit(held) != Ledger::kNoLimit && options.garbage_collection_threshold > 0;
  if (on) blocks.start_keeping_ages();
  set_mode(kAging, on, held);
}

PoolPair HeapState::pools_of(const PrivatePool* owner, const Held& /*held*/) const {
  if (owner != nullptr) return {&owner->small, &owner->large};
  return {&default_pools[0], &default_pools[1]};
}

// --- blocks that someone observes ---------------------------------------------------------------------------------------

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

Context HeapState::context_of(const Block& block, const void* ptr) {
  const DeviceLock lock(mutex);
  const BlockDetail* detail = is_live(block, ptr) ? blocks.slab().find_detail(block) : nullptr;
  return detail == nullptr ? nullptr : detail->context;
}

void HeapState::forget_context(const Block& block, const Held& /*held*/) {
  if (BlockDetail* detail = blocks.slab().find_detail(block)) detail->context.reset();
}

CACHALOT_END
