#include "growth/supply.h"

#include <map>

#include "base/bytes.h"
#include "base/format.h"
#include "cachalot/device.h"
#include "heap/observers.h"
#include "policy/torch_policy.h"

CACHALOT_BEGIN

// Plain memory of a lender serves requests for pages as well, after its pages.
Block* Recovery::borrow(Request request, const Held& held) {
  if (request.pool().owner() != nullptr) return nullptr;
  const bool wants_plain = state_.is_plain(request.pool(), held);
  for (const PoolId id : pools_.lenders(held)) {
    PrivatePool* owner = pools_.find(id, held);
    if (owner == nullptr || owner->is_asleep) continue;
    BlockPool& usual = request.pool().kind() == PoolKind::small ? owner->small : owner->large;
    BlockPool& plain = state_.plain_beside(usual, held);
    Block* block = wants_plain ? nullptr : borrow_from(usual, request, held);
    if (block == nullptr && (wants_plain || &plain != &usual)) block = borrow_from(plain, request, held);
    if (block != nullptr) return block;
  }
  return nullptr;
}

Block* Recovery::borrow_from(BlockPool& pool, Request request, const Held& held) {
  // A growth that cannot tell where its handles end has none for a request in one handle.
  if (request.contiguous && !pool.growth->may_scatter()) return nullptr;
  request.arena = &streams_.arena_of(pool, request.stream(), held);
  return pool.growth->find(request, held);
}

void Recovery::release_default_pools(Growing& growing, Reservation reservation) {
  Growth* const usual = state_.small(growing).growth;
  Growth* const plain = state_.plain_pools.front().growth;
  usual->release_free(nullptr, reservation, growing);
  if (plain != usual) plain->release_free(nullptr, reservation, growing);
}

void Recovery::make_room_for_plain(const Growth& growth, std::size_t bytes, Growing& growing) {
  Growth& usual = *state_.small(growing).growth;
  const bool is_beside = &usual != &growth && &growth == state_.plain_pools.front().growth;
  if (!is_beside || state_.capturing(growing)) return;
  const std::size_t held = state_.ledger.held_bytes(growing) + bytes;
  const std::size_t peak = as_size(state_.counters.max_reserved_bytes());
  if (held > peak) usual.trim({held - peak, /*may_exceed=*/true}, growing);
}

bool Recovery::may_erase(const PrivatePool& pool, const Held& held) const {
  const bool sleeps_on = pool.is_asleep && !pool.tag.empty();
  return pool.holds == 0 && !pools_.in_use(pool, held) && !sleeps_on && !pool.evictable && pool.hold_count == 0 &&
         !pool.large.growth->has_leftovers(pool, held);
}

void Recovery::release_unused_pools(PoolId id, Growing& growing) {
  if (state_.capturing(growing)) return;
  const PrivatePools::ById& pools = pools_.all(growing);
  for (auto next = pools.begin(); next != pools.end();) {
    const auto entry = next++;
    PrivatePool& pool = *entry->second;
    if (pools_.in_use(pool, growing) || (!id.is_default() && entry->first != id)) continue;
    if (!id.is_default()) frees_.synchronize(&pool, growing);
    Growth& usual = *pool.large.growth;
    Growth& plain = *pool.plain.front().growth;
    usual.release_free(&pool, Reservation::goes, growing);
    if (&plain != &usual) plain.release_free(&pool, Reservation::goes, growing);
    if (may_erase(pool, growing)) usual.release_addresses(pool, growing);
    if (may_erase(pool, growing)) pools_.erase(entry->first, growing);  // it may have found a user meanwhile
  }
}

void Recovery::recover(Growing& growing) {
  synchronize_frees(growing);
  state_.drain_caches(growing);
  release_default_pools(growing);
  release_unused_pools({}, growing);
  state_.ledger.retried(PoolKind::small, growing);  // of neither kind
}

void Recovery::empty_cache(PoolId id, CacheBridge& caches) {
  const Operation lock(state_.mutex);
  Growing growing(state_.growth_mutex, lock);
  caches.gather(growing);
  state_.observers.observe({.action = Change::Action::empty_cache, .pool = id}, growing);
  state_.drain_caches(growing);
  if (id.is_default() && !state_.capturing(growing) && !pools_.thread_is_redirected(growing)) {
    synchronize_frees(growing);
    release_default_pools(growing, Reservation::stays);
  }
  release_unused_pools(id, growing);
  if (!state_.immortal_streams) streams_.forget_streams_without_memory(growing);
}

// ---- The message of an out-of-memory error: how the memory is used, and why no free block served the request ----------

namespace {

struct FreeBlocks {
  std::size_t bytes = 0;
  std::size_t largest = 0;
  std::size_t in_split_segments = 0;
};

void add_free_blocks(const Arena& arena, FreeBlocks& blocks) {
  arena.bins.for_each([&](const Block& block) {
    blocks.bytes += block.size();
    blocks.largest = std::max(blocks.largest, block.size());
    if (block.is_split()) blocks.in_split_segments += block.size();
  });
}

std::string explain_held(const HeapState& state, const Held& held) {
  holds(held);
  const std::size_t allocated = as_size(state.counters.allocated_bytes());
  const std::size_t requested = as_size(state.counters.requested_bytes());
  const std::size_t reserved = as_size(state.counters.reserved_bytes());
  if (allocated == 0 && reserved == 0) return " This allocator holds no memory of the device.";
  if (allocated == 0) return formatted(" {} is reserved, and none of it is allocated.", format_bytes(reserved));
  const std::string of_which =
      requested != allocated ? formatted(" (of which {} was requested)", format_bytes(requested)) : "";
  return formatted(" {} is allocated{} and {} is reserved.", format_bytes(allocated), of_which,
                   reserved != 0 ? format_bytes(reserved) : "nothing");
}

// Explains sleeping memory, which is allocated, but neither reserved nor free.
std::string explain_sleep(const HeapState& state, const PrivatePools& pools, const Held& held) {
  holds(held);
  Map<const PrivatePool*, std::size_t> asleep;
  for (const auto& [address, head] : state.blocks.segments()) {
    const BlockPool& pool = head->arena->pool;
    if (!is_asleep(pool)) continue;
    Address end = address;
    for (const Block* block = head; !block->is_edge(); block = block->next) end = block->end();
    asleep[pool.owner()] += pool.growth->asleep_bytes(address, end, held);
  }
  std::size_t bytes = 0;
  std::string parts;
  for (const auto& [id, pool] : pools.all(held)) {
    const std::size_t of_pool = pool->is_asleep ? asleep[pool.get()] : 0;
    if (of_pool == 0) continue;
    bytes += of_pool;
    parts += formatted("{}{} of {}", parts.empty() ? "" : ", ", format_bytes(of_pool), name_of(*pool));
  }
  if (bytes == 0) return "";
  return formatted(" {} is asleep ({}): it has no memory until restore_physical.", format_bytes(bytes), parts);
}

std::string explain_free(const HeapState& state, const PrivatePools& pools, Request request, const Held& held) {
  holds(held);
  FreeBlocks all, here, in_private_pools;
  pools.for_each(
      [&](const BlockPool& pool) {
        if (is_asleep(pool)) return;
        for (const auto& arena : pool.arenas()) {
          add_free_blocks(*arena, all);
          if (arena.get() == request.arena) add_free_blocks(*arena, here);
          if (pool.owner() != nullptr) add_free_blocks(*arena, in_private_pools);
        }
      },
      held);
  if (all.bytes == 0) return state.counters.reserved_bytes() == 0 ? "" : " No reserved memory is free.";
  std::string text = formatted(" {} is reserved but unallocated", format_bytes(all.bytes));
  if (in_private_pools.bytes != 0)
    text += formatted(" ({} of it in private pools)", format_bytes(in_private_pools.bytes));
  text += here.largest == 0
              ? ". This stream could use no free block"
              : formatted(". The largest free block this stream could use is {}", format_bytes(here.largest));
  if (all.largest > here.largest) text += formatted(", the largest of all is {}", format_bytes(all.largest));
  if (all.in_split_segments != 0)
    text += formatted("; {} is free in segments that are partly in use", format_bytes(all.in_split_segments));
  return text + ".";
}

// Explains the uses of memory, and why no cached memory could serve. Amounts of 0 are left out.
std::string explain_use(const HeapState& state, const PrivatePools& pools, Request request, const Held& held) {
  holds(held);
  std::string text =
      formatted("The request was for {}{}.", format_bytes(request.bytes), request.contiguous ? " in one handle" : "");
  text += explain_held(state, held) + explain_sleep(state, pools, held) + explain_free(state, pools, request, held);
  if (const std::int64_t waiting = state.counters.waiting_bytes(); waiting != 0) {
    text += formatted(" {} waits for work on other streams.", format_bytes(as_size(waiting)));
  }
  if (state.options.oom_wait != OomWait::device)
    text += formatted(" The request did not wait for {} (oom_wait).",
                      state.options.oom_wait == OomWait::never ? "work" : "all work of the device");
  return text;
}

// Returns the message. Its first sentences are PyTorch's, so that programs that read those messages read these.
// `segment_bytes`: the size that the device was asked for. `limited_by`: Limits::holding.
CACHALOT_REQUIRES(device_lock)
std::string out_of_memory_text(const HeapState& state, const PrivatePools& pools, Request request,
                               std::size_t segment_bytes, const MemoryInfo& memory, const std::string& limited_by,
                               const Held& held) {
  const std::size_t limit = state.ledger.limit(held);
  std::string text = formatted(
      "CUDA out of memory. Tried to allocate {}. GPU {} has a total capacity of {} of which {} is free. ",
      format_bytes(segment_bytes), state.index, format_bytes(memory.total_bytes), format_bytes(memory.free_bytes));
  if (limit != HeldLimit::kNone) text += formatted("{} allowed by {}; ", format_bytes(limit), limited_by);
  text += explain_use(state, pools, request, held);
  return text.append(request.pool().growth->where_memory_lies());
}

}  // namespace

Block& Supply::obtain(Request request, const Context& context, Held& held) {
  HostReserve::require();  // for all that growth changes
  const SlowWorkRange range(state_.observers.slow_work_observer(held),
                            {SlowWork::Kind::grow, state_.index, request.bytes});
  Growth& growth = *request.pool().growth;
  if (Block* block = growth.find_beside(request, held)) return *block;
  const PoolHold hold(request.pool().owner());
  const ArenaHold arena_hold(*request.arena);
  limits_.measure(held);
  const bool callbacks_freed = pressure_.run_callbacks(held);
  update_sums(held);  // they may have freed into a cache
  if (callbacks_freed) {
    require_awake(request.pool().owner(), state_.index);
    if (Block* block = growth.find(request, held)) return *block;
  }
  Block* block = obtain_or_refuse(request, context, held);
  const auto try_again = [&] {
    holds(held);
    update_sums(held);
    return obtain_or_refuse(request, context, held);
  };
  if (block == nullptr && pressure_.run_last_resorts(held)) block = try_again();
  while (block == nullptr && pressure_.evict(request.pool().owner(), kAnyPriority, held) != 0) block = try_again();
  if (block != nullptr) return *block;
  throw_out_of_memory(request, context, held);
}

// The page heap finds out when nothing but new memory would serve, and does not throw.
Block* Supply::obtain_or_refuse(Request request, const Context& context, Held& held) {
  try {
    if (Block* block = obtain_once(request, context, held)) return block;
  } catch (const Refused&) {
    refuse(request, held);
  }
  if (state_.ledger.refuses(segment_size(request.rounded, state_.options.large_segment_size), held))
    refuse(request, held);
  return nullptr;
}

void Supply::refuse(Request request, Held& held) {
  caches_.gather(held);
  state_.ledger.refused(held);
  pressure_.tell_of_refusal({.device = state_.index,
                             .segment_bytes = segment_size(request.rounded, state_.options.large_segment_size),
                             .held_bytes = state_.ledger.held_bytes(held),
                             .total_bytes = state_.device->properties().total_bytes,
                             .requested_bytes = request.bytes},
                            held);
  throw OutOfMemory(formatted("CUDA out of memory. Allocation was preemptively rejected because it would exceed "
                              "per_process_memory_fraction limit. Requested size: {}",
                              format_bytes(request.bytes)),
                    state_.index, request.bytes);
}

void Supply::update_sums(const Held& held) {
  if (state_.is(HeapState::kCaching, held)) caches_.update_sums(held);
}

Block* Supply::obtain_once(Request request, const Context& context, Held& held) {
  Growing growing(state_.growth_mutex, held);
  return request.pool().growth->obtain(request, context, growing);
}

void Supply::throw_out_of_memory(Request request, const Context& context, Held& held) {
  const std::size_t bytes = segment_size(request.rounded, state_.options.large_segment_size);
  MemoryInfo memory;
  {
    const Unlocked unlocked(held);
    memory = state_.device->memory_info();
  }
  caches_.gather(held);
  state_.ledger.ran_out({.pool_kind = request.pool().kind(),
                         .address = memory.free_bytes,
                         .bytes = request.rounded,
                         .stream = request.stream().handle,
                         .pool = request.pool().id(),
                         .context = context},
                        held);
  const std::size_t limit = state_.ledger.limit(held);
  const std::string message = out_of_memory_text(state_, pools_, request, bytes, memory, limits_.holding(held), held);
  const std::size_t total = limit == HeldLimit::kNone ? memory.total_bytes : limit;
  pressure_.tell({.device = state_.index,
                  .segment_bytes = bytes,
                  .allowed_bytes = total,
                  .device_free_bytes = memory.free_bytes,
                  .device_total_bytes = memory.total_bytes,
                  .requested_bytes = request.bytes,
                  .stream = request.stream().handle,
                  .pool = request.pool().id()},
                 held);
  throw OutOfMemory(message, state_.index, request.bytes);
}

CACHALOT_END
