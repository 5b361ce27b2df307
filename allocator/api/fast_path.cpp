#include "api/fast_path.h"

#include "base/bytes.h"
#include "base/format.h"
#include "base/host_memory.h"
#include "cachalot/errors.h"
#include "device/addresses.h"
#include "heap/observers.h"

CACHALOT_BEGIN

static_assert(HostReserve::kMostRequest == kMaxRequestBytes - 1);

namespace {

using Contexts = HistoryOptions::Contexts;
const Context kNoContext;

}  // namespace

// --- malloc ---------------------------------------------------------------------------------------------------------------

// Begins a malloc under the lock: adds the caches' sums to the statistics, and finishes frees that are done, so that their memory
// can serve this request. As PyTorch, finishes none while a graph is captured (events must not be queried then), nor for a thread
// that allocates into a pool.
void FastPath::enter(Stream stream, Held& held) {
  if (state.is(HeapState::kCaching, held)) slow_.caches.update_sums(held);
  if (!state.is(HeapState::kWaitingFrees, held) || state.capturing(held)) return;
  if (!slow_.pools.holds_frees_back(stream, held)) slow_.frees.reclaim(held);
}

CACHALOT_FAST_PATH Request FastPath::make_request(std::size_t bytes, Stream stream, const Held& held) {
  const std::size_t rounded =
      state.rounds_by_divisions ? round_power2_divisions(bytes, state.options) : round_to_block(bytes);
  BlockPool* pool = &state.default_pools[static_cast<std::size_t>(pool_kind(rounded))];
  if ((state.modes & HeapState::kRedirecting) != 0) [[unlikely]]
    pool = &slow_.pools.pool_for(pool->kind(), stream, held);
  Arena* arena = pool->last();
  if (!pool->last_is_of(stream)) [[unlikely]]
    arena = &arena_of_request(*pool, stream, held);
  return {.bytes = bytes, .rounded = rounded, .arena = arena};
}

Request FastPath::make_request(std::size_t bytes, Stream stream, const AllocationPlace& place, const Held& held) {
  Request request = make_request(bytes + place.alignment.slack(), stream, held);
  request.bytes = bytes;
  if (place.plain) {
    BlockPool& beside = place.owner ? state.pool_of(*place.owner, request.pool().kind(), held) : request.pool();
    request.arena = &arena_of_request(state.plain_beside(beside, held), stream, held);
  }
  request.contiguous = place.contiguous && request.pool().growth->may_scatter();
  return request;
}

Arena& FastPath::arena_of_request(BlockPool& pool, Stream stream, const Held& held) {
  return slow_.streams.arena_of_request(pool, stream, held);
}

CACHALOT_FAST_PATH void* FastPath::allocate(std::size_t bytes, Stream stream, const Context& context) {
  if (bytes - 1 >= HostReserve::most_request()) [[unlikely]] {  // none, too many, or the host has no memory left
    if (bytes == 0) return nullptr;
    if (bytes >= kMaxRequestBytes) refuse(bytes);
    HostReserve::require();
  }
  const DeviceLock lock(state);
  if (state.modes != 0) [[unlikely]] {
    if (state.is(HeapState::kBypassed, lock)) return slow_.uncached.allocate(bytes, lock);
    enter(stream, lock);
  }
  const Request request = make_request(bytes, stream, lock);
  Block* block = state.find_free_and_age(request, lock);
  if (block == nullptr) [[unlikely]]
    return obtain(request, context, lock);
  return state.hand_out(*block, request.rounded, bytes, state.splits(*block, request, lock), context, lock);
}

void* FastPath::obtain(Request request, const Context& context, Held& held) {
  Block& block = slow_.supply.obtain(request, context, held);
  const bool splits = state.splits(block, request, held);
  return tell_if_crossed(state.hand_out(block, request.rounded, request.bytes, splits, context, held), held);
}

// Reports crossing the soft limit. The caller does not have the memory yet: if the callback throws, it is freed.
void* FastPath::tell_if_crossed(void* ptr, Held& held) {
  try {
    slow_.limits.tell_if_crossed(held);
  } catch (...) {
    Block& block = *state.blocks.block_at(as_address(ptr));
    if (state.is(HeapState::kCaching, held)) slow_.caches.detach(block, held);
    free_block(block, kNoContext, held);
    throw;
  }
  return ptr;
}

void* FastPath::allocate_from_heap(std::size_t bytes, Stream stream) {
  if (state.observers.contexts() != Contexts::never) [[unlikely]] {
    return allocate_with_context(bytes, stream);
  }
  return allocate(bytes, stream, kNoContext);
}

// The recorder is called before the lock is taken: it may be slow.
void* FastPath::allocate_with_context(std::size_t bytes, Stream stream) {
  const AllocationStack stack(state.observers.takes_stacks());
  return allocate(bytes, stream, state.observers.gather_context(Contexts::state));
}

// Allocates as allocate does, with another search for the block. A block for aligned memory is found, or made, with room for
// the memory wherever it begins.
void* FastPath::allocate_placed(std::size_t bytes, Stream stream, const AllocationPlace& place) {
  const Alignment alignment = place.alignment;
  const std::size_t slack = alignment.slack();
  if (bytes == 0) return nullptr;
  if (bytes >= kMaxRequestBytes - slack) refuse(bytes);
  const AllocationStack stack(state.observers.takes_stacks());
  const Context context = state.observers.gather_context(Contexts::state);
  const Operation lock(state.mutex);
  if (state.is(HeapState::kBypassed, lock)) return slow_.uncached.allocate(bytes, lock, alignment);
  enter(stream, lock);
  const Request request = make_request(bytes, stream, place, lock);
  const bool looks_for_parts = slack != 0 && !request.contiguous;
  Block* block = looks_for_parts ? state.find_aligned_and_age(request, round_to_block(bytes), alignment, lock)
                                 : request.pool().growth->find(request, lock);
  if (block == nullptr) block = &slow_.supply.obtain(request, context, lock);
  if (request.contiguous) block = &block->arena->pool.growth->cut_contiguous(*block, request, lock);
  if (slack != 0) return tell_if_crossed(hand_out_aligned(*block, request, alignment, context, lock), lock);
  const bool splits = !request.contiguous && state.splits(*block, request, lock);
  return tell_if_crossed(state.hand_out(*block, request.rounded, bytes, splits, context, lock), lock);
}

// Hands out an aligned part of the block. A block cut for memory in one handle lies beside free memory that it should
// merge with.
void* FastPath::hand_out_aligned(Block& block, Request request, Alignment alignment, const Context& context,
                                 const Held& held) {
  const std::size_t rounded = round_to_block(request.bytes);
  Block& part = state.hand_out_aligned(block, rounded, request.bytes, alignment, context, held);
  void* const ptr = as_pointer(part.address);
  if (!request.contiguous) return ptr;
  for (Block* rest : {part.prev, part.next}) {
    if (!rest->is_free()) continue;
    state.blocks.claim(*rest);
    state.blocks.put_back(*rest);
  }
  return ptr;
}

void FastPath::refuse(std::size_t bytes) {
  throw OutOfMemory(
      formatted("CUDA out of memory. Tried to allocate more than 1EB memory: {} bytes asked for on GPU {}, "
                "and no request may reach 1 EiB ({} bytes).",
                bytes, state.index, kMaxRequestBytes),
      state.index, bytes);
}

// --- malloc through a thread's cache ----------------------------------------------------------------------------------------

void* FastPath::allocate_through_cache(std::size_t bytes, Stream stream) {
  const StreamKey key = slow_.streams.identify(stream).key;
  void* ptr = key.is_immortal() || !has_hot_cache() ? nullptr : HotCache::allocate(bytes, key);
  if (ptr == nullptr) ptr = state.caches->allocate(bytes, key);
  return ptr != nullptr ? ptr : allocate_for_cache(bytes, stream);
}

// The heap serves, and while it is at it gives the cache some more of the size.
void* FastPath::allocate_for_cache(std::size_t bytes, Stream stream) {
  const Operation lock(state.mutex);
  CacheBridge& caches = slow_.caches;
  if (state.is(HeapState::kBypassed, lock)) return slow_.uncached.allocate(bytes, lock);
  enter(stream, lock);
  const Request request = make_request(bytes, stream, lock);
  if (state.caches_are_open()) {
    if (void* ptr = state.caches->allocate(bytes, request.stream().key)) return ptr;  // it only had to be gathered
  }
  // Before a block is chosen: a new cache takes from others, and blocks that they give back merge with free memory.
  StreamCache* cache = caches.cache_of(request.stream(), lock);
  Block* block = state.find_free_and_age(request, lock);
  const bool is_used_up = block == nullptr && state.small(lock).growth->mixes_sizes();
  caches.note_small_is_used_up(is_used_up, lock);
  // Free memory between large blocks should stay free, for them, while the cache has small blocks that merge.
  if (cache != nullptr && is_used_up && state.caches->return_own(*cache, lock)) block = state.find_free(request, lock);
  if (block == nullptr) block = &slow_.supply.obtain(request, nullptr, lock);
  // The lock may have been released since; memory borrowed from other pools belongs to them; and memory between large
  // blocks should merge with them as soon as it is free (caching it cost gpt2_varlen 1.6 % of memory).
  if (cache == nullptr || !state.caches_are_open() || block->arena != request.arena)
    return tell_if_crossed(
        state.hand_out(*block, request.rounded, bytes, state.splits(*block, request, lock), nullptr, lock), lock);
  caches.begin_lease(*cache, *block, request, lock);
  state.caches->hand_out(*cache, *block, bytes);
  caches.refill(*cache, request, lock);
  return tell_if_crossed(as_pointer(block->address), lock);
}

// --- free -----------------------------------------------------------------------------------------------------------------

CACHALOT_FAST_PATH void FastPath::free_block(Block& block, const Context& context, Held& held) {
  if (block.uses.head != nullptr) [[unlikely]]
    return slow_.frees.free_later(block, context, held);
  state.count_free_requested(block, context, held);
  state.finish_free(block, context, held);
}

// Takes the live block at `ptr` out of its cache's lease, if it has one. Returns false if it is not live.
CACHALOT_FAST_PATH bool FastPath::take_live(Block& block, const void* ptr, const Held& held) {
  if (!HeapState::is_live(block, ptr)) [[unlikely]]
    return false;
  if (state.is(HeapState::kCaching, held)) [[unlikely]]
    slow_.caches.detach(block, held);
  return true;
}

bool FastPath::deallocate_to_heap(Block& block, const void* ptr) {
  if (state.observers.contexts() == Contexts::all) [[unlikely]] {
    return deallocate_with_context(block, ptr);
  }
  block.prefetch_neighbours();  // the lock is an exchange: no load after it begins before it is done
  const DeviceLock lock(state);
  if (!take_live(block, ptr, lock)) [[unlikely]]
    return false;
  free_block(block, kNoContext, lock);
  return true;
}

bool FastPath::deallocate_with_context(Block& block, const void* ptr) {
  const Context context = state.observers.gather_context(Contexts::all);
  const DeviceLock lock(state);
  if (!take_live(block, ptr, lock)) return false;
  free_block(block, context, lock);
  return true;
}

bool FastPath::deallocate_through_cache(Block& block, const void* ptr) {
  return state.caches->deallocate(block, ptr) || deallocate_to_heap(block, ptr);
}

bool FastPath::deallocate_through_cache(Block& block, const void* ptr, std::size_t bytes, Stream stream) {
  return bytes != 0 && block.lent_bytes(as_address(ptr)) == bytes && block.arena->is_known_as(stream) &&
         state.caches->deallocate(block, ptr);
}

bool FastPath::deallocate_checked(Block& block, const void* ptr, std::size_t bytes, Stream stream) {
  if (state.caches_are_open() && deallocate_through_cache(block, ptr, bytes, stream)) return true;
  Context context;
  if (state.observers.contexts() == Contexts::all) [[unlikely]]
    context = state.observers.gather_context(Contexts::all);
  const DeviceLock lock(state);
  CACHALOT_REQUIRE(!HeapState::is_live(block, ptr) || bytes == block.requested_bytes(),
                   "size {} does not match the allocation at {}: {} bytes were asked for", bytes, ptr,
                   block.requested_bytes());
  if (!take_live(block, ptr, lock)) [[unlikely]]
    return false;
  if (!block.arena->is_known_as(stream)) [[unlikely]] {
    const KnownStream last_user = slow_.streams.identify(stream);
    if (last_user != block.arena->stream) slow_.frees.add_use(block, last_user, lock);
  }
  free_block(block, context, lock);
  return true;
}

bool FastPath::record_stream(Block& block, const void* ptr, const KnownStream& stream) {
  const Operation lock(state.mutex);
  if (!HeapState::is_live(block, ptr)) return false;
  if (stream == block.arena->stream) return true;
  if (state.is(HeapState::kCaching, lock)) slow_.caches.detach(block, lock);
  slow_.frees.add_use(block, stream, lock);
  return true;
}

// --- malloc at an address -----------------------------------------------------------------------------------------------

// The free block of the request's pool and stream that has the request's bytes at `address`, or null. On the page heap
// small blocks may lie beside large ones.
Block* FastPath::free_block_at(Address address, Request request, const Held& /*held*/) {
  Block* const block = state.blocks.block_at(address);
  if (block == nullptr || !block->is_free() || block->end() - address < request.rounded) return nullptr;
  const BlockPool& pool = block->arena->pool;
  const bool is_kind = pool.kind() == request.pool().kind() || pool.growth->mixes_sizes();
  const bool is_own = pool.owner() == request.pool().owner() && block->arena->stream == request.stream();
  return is_kind && is_own ? block : nullptr;
}

// PyTorch's mallocWithAddress (2.13 and newer), step for step. Free memory before the address is handed out first, so that
// the block begins there, and freed last.
void* FastPath::allocate_at(std::size_t bytes, Stream stream, Address address) {
  CACHALOT_REQUIRE(address % kBlockGranularity == 0,
                   "mallocWithAddress: addr must be aligned to kMinBlockSize ({} bytes), got {}", kBlockGranularity,
                   as_pointer(address));
  if (bytes == 0) return nullptr;
  const AllocationStack stack(state.observers.takes_stacks());
  const Context context = state.observers.gather_context(HistoryOptions::Contexts::state);
  const Operation lock(state.mutex);
  enter(stream, lock);
  state.drain_caches(lock);  // blocks in a cache are free to the user
  Request request = make_request(bytes, stream, lock);
  Block* block = free_block_at(address, request, lock);
  CACHALOT_REQUIRE(block != nullptr, "Could not allocate CUDA storage at exact address {}", as_pointer(address));

  request.arena = block->arena;
  const Observers::Placing placing(state.observers, lock);
  Block* prefix = nullptr;
  if (const std::size_t before = address - block->address; before != 0) {
    prefix = block;
    state.hand_out(*prefix, before, before, /*split=*/true, context, lock);
    block = prefix->next;
  }
  void* const ptr = state.hand_out(*block, request.rounded, bytes, state.splits(*block, request, lock), context, lock);
  if (prefix != nullptr) free_block(*prefix, context, lock);
  return ptr;
}

CACHALOT_END
