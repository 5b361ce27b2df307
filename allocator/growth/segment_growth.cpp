#include "growth/segment_growth.h"

#include <algorithm>
#include <utility>

#include "base/bytes.h"
#include "base/check.h"
#include "base/format.h"
#include "cachalot/errors.h"
#include "device/known_stream.h"
#include "policy/torch_policy.h"

CACHALOT_BEGIN

// --- getting memory -----------------------------------------------------------------------------------------------------

Block* SegmentGrowth::find(Request request, const Held& held) { return state_.find_free_and_age(request, held); }

// A Search obtains memory for one request in PyTorch's order, with two exceptions. While a graph is captured nothing is given back:
// cudaFree would spoil the capture. And two rungs are cachalot's: memory that is freed as other streams' work ends, free by free and
// at last all of it, is searched before the cache is given back (PyTorch waits for all of it, and runs out of memory although a
// fitting block has just become free: its issues #171771 and #189504).
struct SegmentGrowth::Search {
  SegmentGrowth& growth;
  const Request request;
  const Context& context;
  HeapState& state = growth.state_;

  // Blocks in caches serve small requests first. Another thread may have grown meanwhile.
  Block* find_after_draining(Growing& growing) CACHALOT_GROWING {
    if (request.pool().kind() == PoolKind::small) growth.caches_.drain_or_grow(growing);
    return state.find_free(request, growing);
  }
  Block* take_from_ended(Growing& growing) CACHALOT_GROWING { return growth.take_from_ended(request, growing); }
  Block* collect_and_grow(Growing& growing) CACHALOT_GROWING {
    growth.streams_.forget_if_many(growing);
    const std::size_t bytes = segment_size(request.rounded, state.options.large_segment_size);
    growth.recovery_.make_room_for_plain(growth, bytes, growing);
    if (state.is(HeapState::kAging, growing) && !state.capturing(growing)) growth.collect_garbage(growing);
    return growth.grow(request, context, growing);
  }
  Block* find_after_draining_all(Growing& growing) CACHALOT_GROWING {
    return state.drain_caches(growing) ? state.find_free(request, growing) : nullptr;
  }
  Block* borrow(Growing& growing) CACHALOT_GROWING { return growth.recovery_.borrow(request, growing); }
  Block* release_oversize_and_grow(Growing& growing) CACHALOT_GROWING {
    return growth.release_oversize_for(request, growing) ? growth.grow(request, context, growing) : nullptr;
  }
  Block* find_as_frees_complete(Growing& growing) CACHALOT_GROWING {
    while (growth.recovery_.synchronize_next_free(request, growing)) {
      if (Block* block = state.find_free(request, growing)) return block;
    }
    return nullptr;
  }
  Block* find_after_other_streams(Growing& growing) CACHALOT_GROWING {
    const bool synchronized = growth.recovery_.synchronize_frees(growing);
    return state.drain_caches(growing) || synchronized ? state.find_free(request, growing) : nullptr;
  }
  Block* release_all_and_grow(Growing& growing) CACHALOT_GROWING {
    growth.recovery_.release_default_pools(growing);
    growth.recovery_.release_unused_pools({}, growing);
    state.ledger.retried(request.pool().kind(), growing);
    return growth.grow(request, context, growing);
  }
};

Block* SegmentGrowth::obtain(Request request, const Context& context, Growing& growing) {
  static constexpr Rung<Search> kRungs[] = {
      {&Search::find_after_draining},
      {&Search::take_from_ended},
      {&Search::collect_and_grow},
      {&Search::find_after_draining_all},
      {&Search::borrow},
      {&Search::release_oversize_and_grow, OomWait::device},
      {&Search::find_as_frees_complete, OomWait::events},
      {&Search::find_after_other_streams, OomWait::events},
      {&Search::release_all_and_grow, OomWait::device},
  };
  Search search{*this, request, context};
  return climb(kRungs, search, state_, growing);
}

// A new segment, as one free block; nullptr when the device or the limit has no room for it.
Block* SegmentGrowth::grow(Request request, const Context& context, Growing& growing) {
  const std::size_t bytes = segment_size(request.rounded, state_.options.large_segment_size);
  std::optional<Ledger::Ask> ask = state_.ledger.ask(bytes, growing);
  if (!ask && state_.ledger.refuses(bytes, growing)) throw Refused{};  // at once, as in PyTorch
  if (!ask) return nullptr;
  const std::optional<Address> address = ask_for_segment(bytes, request, growing);
  if (!address) return nullptr;
  Block& block = adopt(*address, bytes, *request.arena, growing);
  if (PrivatePool* owner = request.pool().owner()) ++owner->holds;
  ask->granted(bytes, growing);
  if (context) state_.blocks.slab().detail(block).segment_context = context;
  state_.ledger.segment_came(block, context, growing);
  return &block;
}

// One segment serves most sizes, unless max_split_size keeps large blocks whole.
std::size_t SegmentGrowth::unused_segment_size(const Held& /*held*/) const {
  const std::size_t most = state_.options.max_split_size;
  return most == Options::kUnlimited ? most : round_down(most - 1, kRoundLarge);
}

bool SegmentGrowth::add_unused(std::size_t bytes, Growing& growing) {
  constexpr std::size_t kSmallPart = 32;
  const auto add = [&](BlockPool& pool, std::size_t wanted, std::size_t largest) {
    holds(growing);
    Arena& arena = streams_.arena_of_nobody(pool, growing);
    const ArenaHold hold(arena);
    std::size_t added = 0;
    while (added < wanted) {
      const std::size_t part = round_to_block(std::min(largest, wanted - added));
      const Block* const block = grow({.bytes = part, .rounded = part, .arena = &arena}, nullptr, growing);
      if (block == nullptr) return false;
      added += segment_size(part, state_.options.large_segment_size);
    }
    return true;
  };
  const std::size_t small = round_up(bytes / kSmallPart + 1, kSmallBuffer);
  if (!add(default_pool(PoolKind::small, growing), small, kSmallSize)) return false;
  return bytes <= small || add(default_pool(PoolKind::large, growing), bytes - small, unused_segment_size(growing));
}

std::optional<Address> SegmentGrowth::ask_for_segment(std::size_t bytes, Request request, Growing& growing) {
  const PrivatePool* const owner = request.pool().owner();
  const Unlocked<Held> unlocked(growing);
  return owner != nullptr && owner->provider
             ? owner->provider->allocate_segment(bytes, state_.index, request.stream().handle)
             : malloc(bytes, request.stream());
}

std::optional<Address> SegmentGrowth::malloc(std::size_t bytes, const KnownStream& /*stream*/) {
  return state_.device->malloc(bytes);
}

void SegmentGrowth::free(const Departing& segment) { state_.device->free(segment.address); }

// Should our own tables fail to take the segment, it goes back at once.
Block& SegmentGrowth::adopt(Address address, std::size_t bytes, Arena& arena, Growing& growing) {
  try {
    return state_.blocks.add_segment(address, bytes, arena);
  } catch (...) {
    const Unlocked<Held> unlocked(growing);
    give_back({address, bytes, &arena, nullptr});
    throw;
  }
}

// A free block of a stream that has ended and whose work is done.
Block* SegmentGrowth::take_from_ended(Request request, Growing& growing) {
  if (request.pool().owner() != nullptr || state_.capturing(growing)) return nullptr;
  clocks_.ask_all(growing);
  Block* best = nullptr;
  for (const auto& arena : request.pool().arenas()) {
    if (!arena->has_ended.load(std::memory_order_relaxed)) continue;
    const StreamClock& clock = clocks_.of(arena->stream, growing);
    arena->bins.for_each_of_at_least(request.rounded, [&](Block& block) {
      holds(growing);
      const bool is_whole = !block.is_split() && may_use(block.size(), request.rounded, request.arena->rules);
      if (!is_whole || !clock.is_done(block.bin.epoch)) return;
      if (best == nullptr || block.size() < best->size()) best = &block;
    });
  }
  if (best == nullptr) return nullptr;
  state_.blocks.claim(*best);
  best->arena = request.arena;
  state_.blocks.put_back(*best);
  return best;
}

// --- giving memory back -------------------------------------------------------------------------------------------------

// Gives back cached large segments, oldest first, until enough is freed: each pass takes those of at least the mean age
// of the segments left before it, and is never cut short.
void SegmentGrowth::collect_garbage(Growing& growing) {
  const std::size_t target = garbage_bytes(state_, growing);
  if (target == 0) return;
  const BlockPool& large = default_pool(PoolKind::large, growing);
  Vector<Block*> candidates;
  append_free_segments(large, candidates);
  const auto age = [&](const Block* block) {
    holds(growing);
    return large.clock - state_.blocks.freed_at(*block);
  };

  Vector<Block*> released;
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
  keep_reservation(released, growing);
  release(released, growing);
}

// Leaves out memory held for a reservation, if there is one.
void SegmentGrowth::keep_reservation(Vector<Block*>& released, const Held& held) const {
  const std::size_t kept = state_.ledger.kept_bytes(held);
  if (kept == 0) return;
  std::size_t left = state_.ledger.held_bytes(held) - kept;
  std::erase_if(released, [&](const Block* block) {
    if (block->size() > left) return true;
    left -= block->size();
    return false;
  });
}

// With max_split_size, large blocks are kept whole and may be given back one by one: the one that fits best, else the
// largest ones until they add up. Released blocks stay released even if they were not enough.
bool SegmentGrowth::release_oversize_for(Request request, Growing& growing) {
  if (state_.options.max_split_size == Options::kUnlimited) return false;
  const std::size_t wanted = std::max(request.rounded, state_.options.max_split_size);
  const FreeBins& bins = request.arena->bins;
  if (Block* block = bins.best_fit(wanted); block != nullptr && !block->is_split()) {
    release({block}, growing);
    return true;
  }
  Vector<Block*> oversize;
  bins.for_each([&](Block& block) {
    holds(growing);
    if (is_oversize(block.size(), state_.options) && !block.is_split()) oversize.push_back(&block);
  });
  Vector<Block*> released;
  std::size_t released_bytes = 0;
  for (auto block = oversize.rbegin(); block != oversize.rend() && released_bytes < wanted; ++block) {
    released.push_back(*block);
    released_bytes += (*block)->size();
  }
  release(released, growing);
  return released_bytes >= wanted;
}

void SegmentGrowth::release_free(PrivatePool* owner, Reservation reservation, Growing& growing) {
  Vector<Block*> blocks;
  if (owner != nullptr) {
    for (const BlockPool* pool : {&owner->small, &owner->large, &owner->plain[0], &owner->plain[1]})
      append_free_segments(*pool, blocks);
  } else {
    append_free_segments(default_pool(PoolKind::large, growing), blocks, reservation);
    append_free_segments(default_pool(PoolKind::small, growing), blocks, reservation);
  }
  release(blocks, growing);
}

std::size_t SegmentGrowth::trim(const TrimGoal& goal, Growing& growing) {
  Vector<Block*> blocks;
  append_free_segments(default_pool(PoolKind::large, growing), blocks);
  append_free_segments(default_pool(PoolKind::small, growing), blocks);
  const auto [chosen, bytes] = goal.choose(blocks, [](const Block* block) { return block->size(); });
  release(chosen, growing);
  return bytes;
}

// The default pool that has this growth's memory, or its plain memory beside another growth's.
BlockPool& SegmentGrowth::default_pool(PoolKind kind, const Held& /*held*/) const {
  const auto at = static_cast<std::size_t>(kind);
  return state_.default_pools[at].growth == this ? state_.default_pools[at] : state_.plain_pools[at];
}

// Free blocks that are whole segments, in PyTorch's order: by stream, size and address. None of another growth's pool.
void SegmentGrowth::append_free_segments(const BlockPool& pool, Vector<Block*>& blocks, Reservation reservation) const {
  if (pool.growth != this) return;
  Vector<const Arena*> arenas;
  for (const auto& arena : pool.arenas()) {
    const bool is_reserved = arena->stream.key == StreamKey::nobody();
    if (!is_reserved || reservation == Reservation::goes) arenas.push_back(arena.get());
  }
  std::sort(arenas.begin(), arenas.end(),
            [](const Arena* a, const Arena* b) { return a->stream.handle < b->stream.handle; });
  for (const Arena* arena : arenas) {
    arena->bins.for_each([&](Block& block) {
      if (!block.is_split()) blocks.push_back(&block);
    });
  }
}

// Releases segments. All leave the heap before the lock is released for the first of them, so that no other thread
// takes one up meanwhile. If the device refuses one, it and those after it return to the heap.
void SegmentGrowth::release(const Vector<Block*>& blocks, Growing& growing) {
  Vector<Departing> departing;
  departing.reserve(blocks.size());
  for (Block* block : blocks) {
    const BlockDetail* detail = state_.blocks.slab().find_detail(*block);
    departing.push_back({block->address, block->size(), block->arena, detail ? detail->segment_context : nullptr});
    state_.ledger.segment_departs(departing.back(), growing);
    state_.blocks.remove_segment(*block);
  }
  for (auto segment = departing.begin(); segment != departing.end(); ++segment) {
    state_.ledger.segment_goes(*segment, growing);
    try {
      const Unlocked<Held> unlocked(growing);
      give_back(*segment);
    } catch (...) {
      state_.ledger.segment_was_refused(*segment, growing);
      for (auto kept = segment; kept != departing.end(); ++kept) return_to_heap(*kept, growing);
      throw;
    }
    if (PrivatePool* owner = segment->arena->pool.owner()) --owner->holds;
    state_.ledger.segment_went(*segment, growing);
  }
}

void SegmentGrowth::give_back(const Departing& segment) {
  const PrivatePool* owner = segment.arena->pool.owner();
  if (owner != nullptr && owner->provider) {
    owner->provider->free_segment(segment.address, segment.bytes, state_.index, segment.arena->stream.handle);
  } else {
    free(segment);
  }
}

void SegmentGrowth::return_to_heap(const Departing& segment, const Held& held) {
  state_.ledger.segment_stays(segment, held);
  Block& block = state_.blocks.add_segment(segment.address, segment.bytes, *segment.arena);
  if (segment.context) state_.blocks.slab().detail(block).segment_context = segment.context;
}

void SegmentGrowth::give_back_everything() noexcept CACHALOT_NO_THREAD_SAFETY_ANALYSIS {
  for (const auto& [address, head] : state_.blocks.segments()) {
    if (head->arena == nullptr || head->arena->pool.growth != this) continue;
    std::size_t bytes = 0;
    for (const Block* block = head; !block->is_edge(); block = block->next) bytes += block->size();
    try {
      give_back({address, bytes, head->arena, nullptr});
    } catch (const CudaError&) {  // the device may be gone at exit; the error cannot be reported
    }
  }
}

// --- sharing ------------------------------------------------------------------------------------------------------------

SharedMemory SegmentGrowth::share(const Block& block, Address base, Growing& growing) {
  SharedMemory memory;
  memory.bytes = block.size();
  memory.offset = block.address - base;
  const Unlocked<Held> unlocked(growing);
  memory.segment = state_.device->ipc_export(base);
  return memory;
}

// An error says that the legacy default stream may not be asked just now, since a stream captures that it waits for.
bool AsyncGrowth::captures(Stream stream) {
  try {
    return state().device->capture_status(stream).capturing;
  } catch (const CudaError&) {
    return true;
  }
}

std::optional<Address> AsyncGrowth::malloc(std::size_t bytes, const KnownStream& stream) {
  // Memory of CUDA's pool is ordered after the stream that it was asked for on.
  const bool is_of_nobody = stream.key == StreamKey::nobody();
  if (!is_of_nobody && !captures(stream.handle)) return state().device->malloc_async(bytes, stream.handle);
  const std::optional<Address> address = state().device->malloc(bytes);
  if (address) plain_.insert(*address);
  return address;
}

// Frees a segment in the order of its stream. A stream that has ended orders nothing: then the device is waited for.
void AsyncGrowth::free(const Departing& segment) {
  const KnownStream& stream = segment.arena->stream;
  if (plain_.contains(segment.address) || !still_lives(*state().device, stream) || captures(stream.handle)) {
    state().device->free(segment.address);
  } else {
    state().device->free_async(segment.address, stream.handle);
  }
  plain_.erase(segment.address);
}

SharedMemory AsyncGrowth::share(const Block& block, Address base, Growing& growing) {
  CACHALOT_REQUIRE(plain_.contains(base),
                   "the allocation at {:#x} cannot be shared: heap:async has memory of CUDA's own pool, which other "
                   "processes cannot open; use heap:segments or heap:pages",
                   block.address);
  return SegmentGrowth::share(block, base, growing);
}

std::optional<Address> ManagedGrowth::malloc(std::size_t bytes, const KnownStream& /*stream*/) {
  return state().device->malloc_managed(bytes);
}

std::string_view ManagedGrowth::where_memory_lies() const {
  return " With heap:managed, memory that the GPU has no room for lies on the host.";
}

SharedMemory ManagedGrowth::share(const Block& block, Address /*base*/, Growing& /*growing*/) {
  throw InvalidArgument(
      formatted("the allocation at {:#x} cannot be shared: heap:managed has managed memory, which other "
                "processes cannot open; use heap:segments or heap:pages",
                block.address));
}

CACHALOT_END
