#include "growth/supply.h"

#include "base/bytes.h"
#include "base/format.h"
#include "growth/out_of_memory.h"
#include "heap/slow_work_range.h"
#include "policy/torch_policy.h"

CACHALOT_BEGIN

Block& Supply::obtain(Request request, const Context& context, Held& held) {
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
  if (block == nullptr && pressure_.run_last_resort(held)) {
    update_sums(held);
    block = obtain_or_refuse(request, context, held);
  }
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
                         .bytes = bytes,
                         .stream = request.stream().handle,
                         .pool = request.pool().id(),
                         .context = context},
                        held);
  const std::size_t limit = state_.ledger.limit(held);
  const std::string message = out_of_memory_text(state_, pools_, request, bytes, memory, limits_.holding(held), held);
  const std::size_t total = limit == Ledger::kNoLimit ? memory.total_bytes : limit;
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
