// DeviceAllocator and streams that come and go. Immortal ones are named by their handle and need nothing of this.
//
// A stream ends when the program says so (stream_ends), which records an event after its last work; or when its handle is that
// of another stream: then its work is known to be done after a wait for the device only. Either way it has no caches any more,
// no event is recorded on it, and its memory is anybody's as soon as its work is done. What becomes free later still counts
// as of its last epoch: no work came after that.
//
// A stream without memory is forgotten, ended or not; it may come again.
#include <algorithm>
#include <set>

#include "base/check.h"
#include "device_allocator.h"

namespace cachalot {

// --- they come --------------------------------------------------------------------------------------------------------

// Where the fast path has not found it.
Arena& DeviceAllocator::arena_of_request(BlockPool& pool, Stream handle) {
  const KnownStream stream = identify(handle);
  if (Arena* known = pool.look_up(stream)) return *known;
  if (!stream.key.is_immortal()) note(stream);
  return arena_of(pool, stream);
}

// What becomes free in a new arena is of the epoch that the stream is in.
Arena& DeviceAllocator::arena_of(BlockPool& pool, const KnownStream& stream) {
  if (Arena* known = pool.look_up(stream)) return *known;
  Arena& arena = pool.add(stream);
  if (const auto clock = clocks_.find(stream.key); clock != clocks_.end()) {
    arena.epoch = clock->second->epoch_of_frees();
    arena.has_ended.store(clock->second->has_ended(), std::memory_order_relaxed);
  }
  return arena;
}

// Whoever had the handle before is no more.
void DeviceAllocator::note(const KnownStream& stream) {
  StreamKey& of_handle = mortal_streams_.try_emplace(stream.handle, stream.key).first->second;
  if (of_handle == stream.key) return;
  const KnownStream before{stream.handle, std::exchange(of_handle, stream.key)};
  if (!is_per_thread(stream.handle)) end_stream(before);
}

// --- they go ----------------------------------------------------------------------------------------------------------

void DeviceAllocator::stream_ends(Stream handle) {
  const Lock lock(mutex_);
  const KnownStream stream = identify(handle);
  if (stream.key.is_immortal()) return;
  const SlowSection slow(*this);
  CACHALOT_REQUIRE(!captures(handle), "stream {} cannot end while it captures a graph",
                   static_cast<const void*>(handle));
  frees_.end_stream(stream);
  if (has_arena(stream.key)) {
    StreamClock& clock = clock_of(stream);
    if (!clock.has_ended()) {
      clock.recorded(record_event(stream), clock.epoch());
      end_stream(stream);
    }
  }
  const auto noted = mortal_streams_.find(handle);
  if (noted != mortal_streams_.end() && noted->second == stream.key) mortal_streams_.erase(noted);
  if (has_many_arenas()) forget_streams_without_memory();
}

bool DeviceAllocator::has_arena(StreamKey stream) const {
  bool has = false;
  for_each_pool([&](const BlockPool& pool) { has |= pool.find(stream) != nullptr; });
  return has;
}

// No clock is made here: others may be looking through them, with the lock let go.
void DeviceAllocator::end_stream(const KnownStream& stream) {
  if (const auto clock = clocks_.find(stream.key); clock != clocks_.end()) clock->second->end();
  for_each_pool([&](const BlockPool& pool) {
    if (Arena* arena = pool.find(stream.key)) arena->has_ended.store(true, std::memory_order_relaxed);
  });
  if (caches_ != nullptr) caches_->end_stream(stream.key);
}

// Over segments: of a stream that has ended and whose work is done, a free one.
Block* DeviceAllocator::take_from_ended(Request request) {
  if (request.pool().owner() != nullptr || capturing()) return nullptr;
  for (const auto& [key, clock] : clocks_) ask_events(*clock);
  Block* best = nullptr;
  for (const auto& arena : request.pool().arenas()) {
    if (!arena->has_ended.load(std::memory_order_relaxed)) continue;
    const StreamClock& clock = clock_of(arena->stream);
    arena->bins.for_each_of_at_least(request.rounded, [&](Block& block) {
      const bool is_whole = !block.is_split() && may_use(block.size(), request.rounded, options_);
      if (!is_whole || !clock.is_done(block.bin.epoch)) return;
      if (best == nullptr || block.size() < best->size()) best = &block;
    });
  }
  if (best == nullptr) return nullptr;
  heap_.claim(*best);
  best->arena = request.arena;
  heap_.put_back(*best);
  return best;
}

// --- they are forgotten -------------------------------------------------------------------------------------------------

bool DeviceAllocator::has_many_arenas() const {
  return default_pools_[0].arenas().size() + default_pools_[1].arenas().size() >= most_arenas_;
}

// Until there are twice as many as are left: so each stream pays for a look at a few blocks.
void DeviceAllocator::forget_streams_without_memory() {
  const std::set<const Arena*> in_use = arenas_with_memory();
  const auto stays = [&](const Arena& arena) {
    return arena.stream.key.is_immortal() || arena.requests != 0 || in_use.contains(&arena);
  };
  std::set<StreamKey> kept;
  for_each_pool([&](const BlockPool& pool) {
    for (const auto& arena : pool.arenas()) {
      if (stays(*arena)) kept.insert(arena->stream.key);
    }
  });
  const auto forget = [&](BlockPool& pool) { pool.remove_if([&](const Arena& arena) { return !stays(arena); }); };
  forget(small());
  forget(large());
  for (const auto& [id, pool] : pools_) {
    forget(pool->small);
    forget(pool->large);
  }
  forget_clocks_but(kept);
  std::erase_if(mortal_streams_, [&](const auto& entry) { return !kept.contains(entry.second); });
  if (caches_ != nullptr) caches_->end_streams_but(kept);
  most_arenas_ = std::max(kFewArenas, 2 * (small().arenas().size() + large().arenas().size()));
}

std::set<const Arena*> DeviceAllocator::arenas_with_memory() const {
  std::set<const Arena*> arenas;
  for (const auto& [address, head] : heap_.segments()) {
    for (const Block* block = head; !block->is_edge() && !block->is_gap(); block = block->next)
      arenas.insert(block->arena);
  }
  return arenas;
}

// Those that stale views still name stay, too.
void DeviceAllocator::forget_clocks_but(const std::set<StreamKey>& kept) {
  std::set<const StreamClock*> named;
  if (pages_ != nullptr) named = pages_->pages().forget_done_uses();
  for (auto at = clocks_.begin(); at != clocks_.end();) {
    StreamClock& clock = *(at++)->second;
    const StreamKey key = clock.stream().key;
    if (key.is_immortal() || kept.contains(key) || named.contains(&clock)) continue;
    while (clock.has_events()) spare_events_.push_back(clock.oldest_is_done());
    for (const auto& [other, its] : clocks_) its->forget(clock);
    clocks_.erase(key);
  }
}

}  // namespace cachalot
