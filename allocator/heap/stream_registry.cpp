#include "heap/stream_registry.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

CACHALOT_BEGIN

// --- streams come -----------------------------------------------------------------------------------------------------------

Arena& StreamRegistry::arena_of_request(BlockPool& pool, Stream handle, const Held& held) {
  const KnownStream stream = identify(handle);
  if (Arena* known = pool.look_up(stream)) return *known;
  if (!stream.key.is_immortal()) note(stream, held);
  return arena_of(pool, stream, held);
}

// What becomes free in a new arena is of the epoch that the stream is in.
Arena& StreamRegistry::arena_of(BlockPool& pool, const KnownStream& stream, const Held& held) {
  if (Arena* known = pool.look_up(stream)) return *known;
  Arena& arena = pool.add(stream);
  if (const StreamClock* clock = clocks_.find(stream.key, held)) {
    arena.epoch = clock->epoch_of_frees();
    arena.has_ended.store(clock->has_ended(), std::memory_order_relaxed);
  }
  return arena;
}

Arena& StreamRegistry::arena_of_nobody(BlockPool& pool, Growing& growing) {
  constexpr KnownStream kNobody{nullptr, StreamKey::nobody()};
  StreamClock& clock = clocks_.of(kNobody, growing);
  clock.end();
  clock.everything_is_done(clock.epoch_of_frees());
  return arena_of(pool, kNobody, growing);
}

// The stream that had the handle before is no more.
void StreamRegistry::note(const KnownStream& stream, const Held& held) {
  StreamKey& of_handle = mortal_.try_emplace(stream.handle, stream.key).first->second;
  if (of_handle == stream.key) return;
  const KnownStream before{stream.handle, std::exchange(of_handle, stream.key)};
  if (!is_per_thread(stream.handle)) mark_ended(before, held);
}

// --- streams end ------------------------------------------------------------------------------------------------------------

void StreamRegistry::stream_ends(Stream handle) {
  const DeviceLock lock(state_.mutex);
  const KnownStream stream = identify(handle);
  if (stream.key.is_immortal()) return;
  Growing growing(state_.growth_mutex, lock);
  CACHALOT_REQUIRE(!clocks_.captures(handle, growing), "stream {} cannot end while it captures a graph",
                   static_cast<const void*>(handle));
  frees_.end_stream(stream, growing);
  if (has_arena(stream.key, growing) && clocks_.record_end(stream, growing)) mark_ended(stream, growing);
  const auto noted = mortal_.find(handle);
  if (noted != mortal_.end() && noted->second == stream.key) mortal_.erase(noted);
  forget_if_many(growing);
}

bool StreamRegistry::has_arena(StreamKey stream, const Held& held) const {
  bool has = false;
  pools_.for_each([&](const BlockPool& pool) { has |= pool.find(stream) != nullptr; }, held);
  return has;
}

// No clock is made here: others may be looking through them, with the lock let go.
void StreamRegistry::mark_ended(const KnownStream& stream, const Held& held) {
  if (StreamClock* clock = clocks_.find(stream.key, held)) clock->end();
  pools_.for_each(
      [&](const BlockPool& pool) {
        if (Arena* arena = pool.find(stream.key)) arena->has_ended.store(true, std::memory_order_relaxed);
      },
      held);
  caches_.end_stream(stream.key, held);
}

// --- streams are forgotten --------------------------------------------------------------------------------------------------

std::size_t StreamRegistry::default_arenas(const Held& /*held*/) const {
  return state_.default_pools[0].arenas().size() + state_.default_pools[1].arenas().size();
}

void StreamRegistry::forget_if_many(Growing& growing) {
  if (default_arenas(growing) >= most_arenas_) forget_streams_without_memory(growing);
}

// The next time is when there are twice as many as are left.
void StreamRegistry::forget_streams_without_memory(Growing& growing) {
  const std::set<const Arena*> in_use = arenas_with_memory(growing);
  const auto stays = [&](const Arena& arena) {
    return arena.stream.key.is_immortal() || arena.requests != 0 || in_use.contains(&arena);
  };
  std::set<StreamKey> kept;
  pools_.for_each(
      [&](BlockPool& pool) {
        for (const auto& arena : pool.arenas()) {
          if (stays(*arena)) kept.insert(arena->stream.key);
        }
        pool.remove_if([&](const Arena& arena) { return !stays(arena); });
      },
      growing);
  clocks_.forget_but(kept, growing);
  std::erase_if(mortal_, [&](const auto& entry) { return !kept.contains(entry.second); });
  caches_.end_streams_but(kept, growing);
  most_arenas_ = std::max(kFewArenas, 2 * default_arenas(growing));
}

std::set<const Arena*> StreamRegistry::arenas_with_memory(const Held& /*held*/) const {
  std::set<const Arena*> arenas;
  for (const auto& [address, head] : state_.blocks.segments()) {
    for (const Block* block = head; !block->is_edge() && !block->is_gap(); block = block->next)
      arenas.insert(block->arena);
  }
  return arenas;
}

CACHALOT_END
