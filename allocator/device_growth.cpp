// The slow path of DeviceAllocator: what happens when no free block serves a request, and how memory goes back.
#include <algorithm>
#include <utility>

#include "base/bytes.h"
#include "base/check.h"
#include "device_allocator.h"
#include "policy/torch_policy.h"

namespace cachalot {

// --- getting memory -------------------------------------------------------------------------------------------------

Block& DeviceAllocator::obtain(Request request, const Context& context) {
  if (is_paged(request.pool()) && !request.contiguous) {  // what is free beside large blocks takes no slow path
    if (Block* block = search_fragments(request)) return *block;
  }
  const PoolHold hold(request.pool().owner());
  const ArenaHold arena_hold(*request.arena);
  const bool callbacks_freed = run_free_memory_callbacks();
  if ((rare_ & kCaching) != 0) come_to_heap();  // they may have freed into a cache
  if (callbacks_freed) {
    require_awake(request.pool().owner());
    if (Block* block = find_in_arena(request)) return *block;
  }
  Block* block = obtain_once(request, context);
  if (block == nullptr && run_last_resort()) {
    if ((rare_ & kCaching) != 0) come_to_heap();
    block = obtain_once(request, context);
  }
  if (block != nullptr) return *block;
  throw_out_of_memory(request, context);
}

Block* DeviceAllocator::obtain_once(Request request, const Context& context) {
  if (request.contiguous) return obtain_contiguous(request, context);
  return is_paged(request.pool()) ? obtain_from_pages(request, context) : obtain_from_device(request, context);
}

// PyTorch's order, but for two things. While a graph is captured nothing is given back: cudaFree would spoil the capture.
// And one step is ours: what the wait for other streams' work has freed is searched before the cache is
// given back (PyTorch runs out of memory although a fitting block has just become free, its issue #189504).
Block* DeviceAllocator::obtain_from_device(Request request, const Context& context) {
  const SlowSection slow(*this);
  if (request.pool().kind() == PoolKind::small) drain_caches_or_grow();  // what caches hold serves small blocks first
  if (Block* block = search(request)) return block;  // that helped, or another thread grew or freed meanwhile
  if (Block* block = take_from_ended(request)) return block;
  if (has_many_arenas()) forget_streams_without_memory();
  if ((rare_ & kAging) != 0 && !capturing()) collect_garbage();
  Block* block = grow(request, context);
  if (block == nullptr && drain_caches()) block = search(request);
  if (block == nullptr) block = borrow_from_pools(request);
  if (block == nullptr && !capturing() && release_oversize_for(request)) block = grow(request, context);
  if (block != nullptr || capturing()) return block;

  const bool synchronized = synchronize_frees(nullptr);
  if (drain_caches() || synchronized) block = search(request);  // threads freed meanwhile
  if (block == nullptr) {
    release_default_pools();
    release_unused_pools({});
    count_retry(request.pool().kind());
    block = grow(request, context);
  }
  return block;
}

bool DeviceAllocator::run_free_memory_callbacks() {
  if (free_memory_callbacks_.empty()) return false;
  const std::vector<FreeMemoryCallback> callbacks = free_memory_callbacks_;
  const Unlocked unlocked(mutex_);
  bool freed = false;
  for (const FreeMemoryCallback& callback : callbacks) freed |= callback();
  return freed;
}

void DeviceAllocator::set_last_resort(FreeMemoryCallback last_resort) {
  const Lock lock(mutex_);
  last_resort_ = std::move(last_resort);
}

bool DeviceAllocator::run_last_resort() {
  if (!last_resort_) return false;
  const Unlocked unlocked(mutex_);
  return last_resort_();
}

// A new segment, as one free block; nullptr when the device or the limit has no room for it.
Block* DeviceAllocator::grow(Request request, const Context& context) {
  const std::size_t bytes = segment_size(request.rounded, options_.large_segment_size);
  if (limit_ != kNoLimit && held_bytes_ + bytes > limit_) return nullptr;
  const std::optional<Address> address = ask_for_segment(bytes, request);
  if (!address) return nullptr;
  Block& block = adopt(*address, bytes, *request.arena);

  const PoolKind kind = request.pool().kind();
  counters_.segment_allocated(kind, as_signed(bytes));
  if (is_oversize(bytes, options_)) counters_.oversize_segment(1);
  if (context) heap_.slab().detail(block).segment_context = context;
  if ((rare_ & kObserved) != 0) observe(change_of(Change::Action::segment_alloc, block, context));
  return &block;
}

// Should our own tables fail to take the segment, it goes back at once.
Block& DeviceAllocator::adopt(Address address, std::size_t bytes, Arena& arena) {
  try {
    return heap_.add_segment(address, bytes, arena);
  } catch (...) {
    held_bytes_ -= bytes;
    if (PrivatePool* owner = arena.pool.owner()) --owner->segments;
    const Unlocked unlocked(mutex_);
    give_back({address, bytes, &arena, nullptr});
    throw;
  }
}

// The bytes count as held from before the call, so that other threads keep within the limit.
std::optional<Address> DeviceAllocator::ask_for_segment(std::size_t bytes, Request request) {
  PrivatePool* const owner = request.pool().owner();
  held_bytes_ += bytes;
  asking_bytes_ += bytes;
  std::optional<Address> address;
  try {
    const Unlocked unlocked(mutex_);
    address = owner != nullptr && owner->provider
                  ? owner->provider->allocate_segment(bytes, index_, request.stream().handle)
                  : device_->malloc(bytes);
  } catch (...) {
    asking_bytes_ -= bytes;
    held_bytes_ -= bytes;
    throw;
  }
  asking_bytes_ -= bytes;
  if (!address) {
    held_bytes_ -= bytes;
  } else if (owner != nullptr) {
    ++owner->segments;
  }
  return address;
}

// Pools that offered their free blocks serve others as a last resort; never the request of another private pool.
Block* DeviceAllocator::borrow_from_pools(Request request) {
  if (request.pool().owner() != nullptr) return nullptr;
  for (const PoolId id : use_on_oom_) {
    PrivatePool* owner = find_pool(id);
    if (owner == nullptr || owner->is_asleep) continue;
    Request borrowed = request;
    BlockPool& pool = request.pool().kind() == PoolKind::small ? owner->small : owner->large;
    borrowed.arena = &arena_of(pool, request.stream());
    if (Block* block = find_in_arena(borrowed)) return block;
  }
  return nullptr;
}

// --- giving memory back ---------------------------------------------------------------------------------------------

// What garbage collection keeps the held bytes under: a part of the limit.
std::size_t DeviceAllocator::garbage_limit() const {
  return static_cast<std::size_t>(options_.garbage_collection_threshold * static_cast<double>(limit_));
}

// Gives back cached large segments, oldest first, until enough is freed: each pass takes those of at least the mean
// age of what was left before it, and is never cut short.
void DeviceAllocator::collect_garbage() {
  if (held_bytes_ <= garbage_limit()) return;
  const std::size_t target = held_bytes_ - garbage_limit();
  std::vector<Block*> candidates;
  append_free_segments(large(), candidates);
  const auto age = [&](const Block* block) { return large().clock - heap_.freed_at(*block); };

  std::vector<Block*> released;
  std::size_t released_bytes = 0;
  while (released_bytes < target && !candidates.empty()) {
    double total_age = 0;
    for (const Block* block : candidates) total_age += static_cast<double>(age(block));
    const double mean_age = total_age / static_cast<double>(candidates.size());
    const auto old = [&](const Block* block) { return static_cast<double>(age(block)) >= mean_age; };
    const auto first_old =
        std::stable_partition(candidates.begin(), candidates.end(), [&](const Block* block) { return !old(block); });
    if (first_old == candidates.end()) break;
    for (auto block = first_old; block != candidates.end(); ++block) released_bytes += (*block)->size();
    released.insert(released.end(), first_old, candidates.end());
    candidates.erase(first_old, candidates.end());
  }
  release(released);
}

// With max_split_size, large blocks are kept whole and may be given back one by one: the one that fits best, else the
// largest ones until they add up. What was released stays released even if it was not enough.
bool DeviceAllocator::release_oversize_for(Request request) {
  if (options_.max_split_size == Options::kUnlimited) return false;
  const std::size_t wanted = std::max(request.rounded, options_.max_split_size);
  const FreeBins& bins = request.arena->bins;
  if (Block* block = bins.best_fit(wanted); block != nullptr && !block->is_split()) {
    release({block});
    return true;
  }
  std::vector<Block*> oversize;
  bins.for_each([&](Block& block) {
    if (is_oversize(block.size(), options_) && !block.is_split()) oversize.push_back(&block);
  });
  std::vector<Block*> released;
  std::size_t released_bytes = 0;
  for (auto block = oversize.rbegin(); block != oversize.rend() && released_bytes < wanted; ++block) {
    released.push_back(*block);
    released_bytes += (*block)->size();
  }
  release(released);
  return released_bytes >= wanted;
}

// Waits until the blocks of one pool (or all) that wait for other streams are free. False: none was waiting.
bool DeviceAllocator::synchronize_frees(const PrivatePool* only) {
  ++counters_.num_sync_all_streams;
  if ((rare_ & kObserved) != 0) observe({.action = Change::Action::synchronize});
  if ((rare_ & kWaitingFrees) == 0) return false;
  queue_frees_deferred_in_capture();
  frees_.synchronize([only](const Block& block) { return only == nullptr || block.arena->pool.owner() == only; });
  return true;
}

void DeviceAllocator::empty_cache(PoolId id) {
  const Lock lock(mutex_);
  const SlowSection slow(*this);
  gather_all();
  if ((rare_ & kObserved) != 0) observe({.action = Change::Action::empty_cache, .pool = id});
  drain_caches();
  if (id.is_default() && !capturing() && !thread_is_redirected()) {
    synchronize_frees(nullptr);
    release_default_pools();
  }
  release_unused_pools(id);
  if (!immortal_streams_) forget_streams_without_memory();
}

void DeviceAllocator::release_default_pools() {
  if (pages_ != nullptr) return release_pages(nullptr, kEverything);
  std::vector<Block*> blocks;
  append_free_segments(large(), blocks);
  append_free_segments(small(), blocks);
  release(blocks);
}

// Of pools without users; all of them for the default id. A pool left without segments is no more, but a tag stays asleep
// until it is woken. Nothing during a capture, which a cudaFree or a wait would spoil.
void DeviceAllocator::release_unused_pools(PoolId id) {
  if (capturing()) return;
  for (auto next = pools_.begin(); next != pools_.end();) {
    const auto entry = next++;
    PrivatePool& pool = *entry->second;
    if (in_use(pool) || (!id.is_default() && entry->first != id)) continue;
    if (!id.is_default()) synchronize_frees(&pool);
    if (is_paged(pool.large)) {
      release_pages(&pool, kEverything);
    } else {
      std::vector<Block*> blocks;
      append_free_segments(pool.small, blocks);
      append_free_segments(pool.large, blocks);
      release(blocks);
    }
    const auto is_done = [&] {
      const bool sleeps_on = pool.is_asleep && !pool.tag.empty();
      return pool.segments == 0 && !in_use(pool) && !sleeps_on && !has_orphans(pool);
    };
    if (is_done()) release_ranges(pool);
    if (is_done()) pools_.erase(entry);  // it may have found a user meanwhile
  }
}

// Free blocks that are whole segments, in PyTorch's order: by stream, size and address.
void DeviceAllocator::append_free_segments(BlockPool& pool, std::vector<Block*>& blocks) {
  std::vector<const Arena*> arenas;
  for (const auto& arena : pool.arenas()) arenas.push_back(arena.get());
  std::sort(arenas.begin(), arenas.end(),
            [](const Arena* a, const Arena* b) { return a->stream.handle < b->stream.handle; });
  for (const Arena* arena : arenas) {
    arena->bins.for_each([&](Block& block) {
      if (!block.is_split()) blocks.push_back(&block);
    });
  }
}

// All leave the heap before the lock is let go for the first of them, so that no other thread takes one up meanwhile.
// Should the device refuse one, it and those after it return to the heap.
void DeviceAllocator::release(const std::vector<Block*>& blocks) {
  std::vector<Departing> departing;
  departing.reserve(blocks.size());
  for (Block* block : blocks) {
    const BlockDetail* detail = heap_.slab().find_detail(*block);
    departing.push_back({block->address, block->size(), block->arena, detail ? detail->segment_context : nullptr});
    departing_bytes_ += block->size();
    counters_.segment_freed(block->arena->pool.kind(), as_signed(block->size()));
    heap_.remove_segment(*block);
  }
  for (auto segment = departing.begin(); segment != departing.end(); ++segment) {
    try {
      const Unlocked unlocked(mutex_);
      give_back(*segment);
    } catch (...) {
      std::for_each(segment, departing.end(), [this](const Departing& kept) { return_to_heap(kept); });
      throw;
    }
    count_released(*segment);
  }
}

void DeviceAllocator::give_back(const Departing& departing) {
  const PrivatePool* owner = departing.arena->pool.owner();
  if (owner != nullptr && owner->provider) {
    owner->provider->free_segment(departing.address, departing.bytes, index_, departing.arena->stream.handle);
  } else {
    device_->free(departing.address);
  }
}

void DeviceAllocator::return_to_heap(const Departing& departing) {
  departing_bytes_ -= departing.bytes;
  counters_.segment_kept(departing.arena->pool.kind(), as_signed(departing.bytes));
  Block& block = heap_.add_segment(departing.address, departing.bytes, *departing.arena);
  if (departing.context) heap_.slab().detail(block).segment_context = departing.context;
}

void DeviceAllocator::count_released(const Departing& departing) {
  const BlockPool& pool = departing.arena->pool;
  departing_bytes_ -= departing.bytes;
  held_bytes_ -= departing.bytes;
  if (pool.owner() != nullptr) --pool.owner()->segments;
  ++counters_.num_device_free;
  if (is_oversize(departing.bytes, options_)) counters_.oversize_segment(-1);
  observe_memory(Change::Action::segment_free, departing.address, departing.bytes, *departing.arena, departing.context);
}

// Memory that came from the device or went back to it.
void DeviceAllocator::count_retry(PoolKind kind) {
  ++counters_.num_alloc_retries;
  if ((rare_ & kObserved) != 0) observe({.action = Change::Action::retry, .pool_kind = kind});
}

void DeviceAllocator::observe_memory(Change::Action action, Address address, std::size_t bytes, const Arena& arena,
                                     const Context& context) {
  if ((rare_ & kObserved) == 0) return;
  // A page of large blocks that serves small ones counts as large.
  const PageRange* range = pages_ != nullptr ? pages_->range_of(address) : nullptr;
  observe({.action = action,
           .pool_kind = range != nullptr ? range->kind : arena.pool.kind(),
           .address = address,
           .bytes = bytes,
           .stream = arena.stream.handle,
           .pool = arena.pool.id(),
           .context = context});
}

}  // namespace cachalot
