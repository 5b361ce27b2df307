#include "growth/cache_level.h"

#include <algorithm>

#include "base/bytes.h"
#include "base/check.h"
#include "base/format.h"
#include "cachalot/errors.h"
#include "cachalot/events.h"

CACHALOT_BEGIN

// --- lower ----------------------------------------------------------------------------------------------------------------

std::size_t CacheLevel::trim(std::size_t keep_bytes) {
  const Operation lock(state_.mutex);
  Growing growing(state_.growth_mutex, lock);
  return lower(keep_bytes, /*may_exceed=*/false, growing);
}

void CacheLevel::come_under_limit() {
  const Operation lock(state_.mutex);
  Growing growing(state_.growth_mutex, lock);
  lower(state_.ledger.limit(growing), /*may_exceed=*/true, growing);
}

std::size_t CacheLevel::give_back(std::size_t bytes) {
  const Operation lock(state_.mutex);
  Growing growing(state_.growth_mutex, lock);
  const std::size_t held = state_.ledger.held_bytes(growing);
  return lower(held - std::min(held, bytes), /*may_exceed=*/true, growing);
}

// During a capture the device takes nothing back, and may not be asked how far its work has come.
std::size_t CacheLevel::lower(std::size_t most_held, bool may_exceed, Growing& growing) {
  if (state_.ledger.held_bytes(growing) <= most_held || state_.capturing(growing)) return 0;
  frees_.reclaim(growing);
  caches_.gather(growing);
  state_.drain_caches(growing);
  const std::size_t goal = state_.ledger.held_bytes(growing) - most_held;
  const std::size_t given = growth_.trim({goal, may_exceed}, growing);
  Growth& plain = *state_.plain_pools.front().growth;
  if (&plain == &growth_ || given >= goal) return given;
  return given + plain.trim({goal - given, may_exceed}, growing);
}

// --- raise ----------------------------------------------------------------------------------------------------------------

void CacheLevel::reserve(std::size_t bytes) {
  CACHALOT_REQUIRE(bytes < kMaxRequestBytes, "reserve: {} bytes are asked for; it must be less than 1 EiB ({} bytes)",
                   bytes, kMaxRequestBytes);
  const Operation lock(state_.mutex);
  limits_.measure(lock);
  {
    Growing growing(state_.growth_mutex, lock);
    CACHALOT_REQUIRE(!state_.capturing(growing), "reserve: a stream of GPU {} captures a graph; reserve before it",
                     state_.index);
    if (!add_unused(bytes, growing)) {
      recovery_.recover(growing);  // memory cached for one stream gives way to memory for all
      if (!add_unused(bytes, growing)) throw_out_of_memory(bytes, growing);
    }
    state_.ledger.keep(state_.ledger.held_bytes(growing), growing);
  }
  limits_.tell_if_crossed(lock);
}

// Returns false, with held memory as before, if neither the device nor the limit has room.
bool CacheLevel::add_unused(std::size_t bytes, Growing& growing) {
  const std::size_t unused = unused_bytes(growing);
  if (unused >= bytes) return true;
  const std::size_t held = state_.ledger.held_bytes(growing);
  bool is_added = false;
  try {
    is_added = growth_.add_unused(bytes - unused, growing);
  } catch (const Refused&) {  // by the option throw_on_cudamalloc_oom
  }
  if (!is_added) lower(held, /*may_exceed=*/false, growing);
  return is_added;
}

void CacheLevel::throw_out_of_memory(std::size_t bytes, Held& held) {
  MemoryInfo memory;
  {
    const Unlocked unlocked(held);
    memory = state_.device->memory_info();
  }
  const std::size_t limit = state_.ledger.limit(held);
  const std::string allowed =
      limit == HeldLimit::kNone ? "" : formatted(", {} is allowed by {}", format_bytes(limit), limits_.holding(held));
  throw OutOfMemory(
      formatted(
          "CUDA out of memory. Tried to reserve {} on GPU {}, which has a total capacity of {} of which {} is free. "
          "This allocator holds {}{}.",
          format_bytes(bytes), state_.index, format_bytes(memory.total_bytes), format_bytes(memory.free_bytes),
          format_bytes(state_.ledger.held_bytes(held)), allowed),
      state_.index, bytes);
}

std::size_t CacheLevel::unused_bytes(const Held& /*held*/) const {
  std::size_t bytes = 0;
  for (const BlockPool& pool : state_.default_pools) {
    const Arena* const arena = pool.find(StreamKey::nobody());
    if (arena != nullptr) arena->bins.for_each([&](const Block& block) { bytes += block.size(); });
  }
  return bytes;
}

std::size_t CacheLevel::reserved_unused() const {
  const DeviceLock lock(state_.mutex);
  return unused_bytes(lock);
}

CACHALOT_END
