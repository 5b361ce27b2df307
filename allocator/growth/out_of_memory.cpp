#include "growth/out_of_memory.h"

#include <algorithm>
#include <map>

#include "base/bytes.h"
#include "base/format.h"
#include "growth/growth.h"

CACHALOT_BEGIN

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

// What sleeps is allocated, but neither reserved nor free.
std::string explain_sleep(const HeapState& state, const PrivatePools& pools, const Held& held) {
  holds(held);
  std::map<const PrivatePool*, std::size_t> asleep;
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

// Where the memory is, and why none of what is cached could serve. Amounts of 0 are left out.
std::string explain_use(const HeapState& state, const PrivatePools& pools, Request request, const Held& held) {
  holds(held);
  std::string text =
      formatted("The request was for {}{}.", format_bytes(request.bytes), request.contiguous ? " in one handle" : "");
  text += explain_held(state, held) + explain_sleep(state, pools, held) + explain_free(state, pools, request, held);
  if (const std::int64_t waiting = state.counters.waiting_bytes(); waiting != 0) {
    text += formatted(" {} waits for work on other streams.", format_bytes(as_size(waiting)));
  }
  return text;
}

}  // namespace

std::string out_of_memory_text(const HeapState& state, const PrivatePools& pools, Request request,
                               std::size_t segment_bytes, const MemoryInfo& memory, const std::string& limited_by,
                               const Held& held) {
  const std::size_t limit = state.ledger.limit(held);
  std::string text = formatted(
      "CUDA out of memory. Tried to allocate {}. GPU {} has a total capacity of {} of which {} is free. ",
      format_bytes(segment_bytes), state.index, format_bytes(memory.total_bytes), format_bytes(memory.free_bytes));
  if (limit != Ledger::kNoLimit) text += formatted("{} allowed by {}; ", format_bytes(limit), limited_by);
  return text + explain_use(state, pools, request, held);
}

CACHALOT_END
