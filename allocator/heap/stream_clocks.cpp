#include "heap/stream_clocks.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "cachalot/errors.h"

CACHALOT_BEGIN

namespace {

// The events of a stream that are not yet done: more tell its progress more finely.
constexpr std::size_t kMostEvents = 8;
// Queries of an event that was recorded just now, each of which takes the driver one to two microseconds.
constexpr int kLooks = 64;

}  // namespace

// No other thread uses them any more.
StreamClocks::~StreamClocks() CACHALOT_NO_THREAD_SAFETY_ANALYSIS {
  for (const auto& [stream, clock] : clocks_) {
    while (clock->has_events()) spare_events_.push_back(clock->oldest_is_done());
  }
  for (const Event event : spare_events_) {
    try {
      state_.device->event_destroy(event);
    } catch (const CudaError&) {  // the device may be gone at exit; the error cannot be reported
    }
  }
}

StreamClock& StreamClocks::of(const KnownStream& stream, Growing& /*growing*/) {
  std::unique_ptr<StreamClock>& clock = clocks_[stream.key];
  if (!clock) clock = std::make_unique<StreamClock>(stream);
  return *clock;
}

StreamClock* StreamClocks::find(StreamKey stream, const Held& /*held*/) {
  const auto found = clocks_.find(stream);
  return found != clocks_.end() ? found->second.get() : nullptr;
}

std::size_t StreamClocks::count(const Held& /*held*/) const {
  return clocks_.size() - clocks_.count(StreamKey::nobody());
}

// --- epochs and events ----------------------------------------------------------------------------------------------------

void StreamClocks::end_epoch(StreamClock& clock, const Held& /*held*/) {
  clock.end_epoch();
  for (const auto* pools : {&state_.default_pools, &state_.plain_pools}) {
    for (const BlockPool& pool : *pools) {
      if (Arena* arena = pool.find(clock.stream().key)) arena->epoch = clock.epoch();
    }
  }
}

// The epoch ends before the event is recorded: what becomes free meanwhile is not taken to be before it. Where the device
// refuses a call, as for a stream that was destroyed, only a wait for the device says when the stream's work is done.
void StreamClocks::record_epoch(StreamClock& clock, Held& held) {
  try {
    if (captures(clock.stream().handle, held)) return;  // announced or not
    const std::uint32_t epoch = clock.epoch();
    end_epoch(clock, held);
    clock.recorded(record_event(clock.stream(), held), epoch);
  } catch (const CudaError&) {
  }
}

bool StreamClocks::captures(Stream stream, Held& held) {
  const Unlocked unlocked(held);
  return state_.device->capture_status(stream).capturing;
}

Event StreamClocks::record_event(const KnownStream& stream, Held& held) {
  Event event = nullptr;
  if (!spare_events_.empty()) {
    event = spare_events_.back();
    spare_events_.pop_back();
  }
  try {
    const Unlocked unlocked(held);
    if (event == nullptr) event = state_.device->event_create();
    state_.device->event_record(event, stream.handle);
  } catch (...) {
    if (event != nullptr) spare_events_.push_back(event);
    throw;
  }
  return event;
}

void StreamClocks::refresh(Request request, std::size_t page_bytes, Growing& growing) {
  for (const auto& [key, clock] : clocks_) {
    ask_events(*clock, growing);
    if (clock->events() < kMostEvents && may_record(*clock, request, page_bytes, growing))
      record_epoch(*clock, growing);
  }
}

void StreamClocks::look_at_idle(std::size_t page_bytes, Growing& growing) {
  for (const auto& [key, clock] : clocks_) {
    const bool lives = !clock->has_ended() && (stays(key, growing) || key == StreamKey());
    const bool is_wanted = clock->events() < kMostEvents && owns_idle_pages(key, page_bytes, growing);
    if (lives && is_wanted) record_epoch(*clock, growing);
    for (int i = 0; i < kLooks && clock->has_events(); ++i) spare_done_events(*clock, growing);
  }
}

void StreamClocks::ask_all(Growing& growing) {
  for (const auto& [key, clock] : clocks_) ask_events(*clock, growing);
}

void StreamClocks::ask_events(StreamClock& clock, Held& held) {
  clock.request_comes();
  spare_done_events(clock, held);
}

void StreamClocks::spare_done_events(StreamClock& clock, Held& held) {
  while (clock.has_events() && event_is_done(clock.oldest_event(), held)) {
    spare_events_.push_back(clock.oldest_is_done());
  }
}

bool StreamClocks::event_is_done(Event event, Held& held) {
  const Unlocked unlocked(held);
  return state_.device->event_query(event);
}

// A stream that is not immortal may be destroyed by now, unless it is the one that allocates. An event on the legacy default
// stream waits for all blocking streams, and they wait for it: programs with streams of their own have such streams, PyTorch
// has none, and even there the event is for memory that others want.
bool StreamClocks::may_record(const StreamClock& clock, Request request, std::size_t page_bytes,
                              const Held& held) const {
  const StreamKey stream = clock.stream().key;
  if (clock.has_ended()) return false;
  if (stream == request.stream().key) return true;
  if (!stays(stream, held)) return false;
  return !is_legacy(clock.stream().handle) || owns_idle_pages(stream, page_bytes, held);
}

// Returns whether the stream lives as long as the process.
bool StreamClocks::stays(StreamKey stream, const Held& /*held*/) const {
  return state_.immortal_streams && stream.is_immortal();
}

// Returns whether the stream has idle pages, which requests of other streams may use.
bool StreamClocks::owns_idle_pages(StreamKey stream, std::size_t page_bytes, const Held& held) const {
  return std::any_of(state_.default_pools.begin(), state_.default_pools.end(), [&](const BlockPool& pool) {
    holds(held);
    const Arena* const arena = pool.find(stream);
    return arena != nullptr && arena->bins.best_fit(page_bytes) != nullptr;
  });
}

bool StreamClocks::finish_next(std::size_t page_bytes, Growing& growing) {
  Vector<StreamClock*> clocks;
  std::vector<Event> events;
  for (const auto& [key, clock] : clocks_) {
    if (!clock->has_events() || !owns_idle_pages(key, page_bytes, growing)) continue;
    clocks.push_back(clock.get());
    events.push_back(clock->oldest_event());
  }
  if (clocks.empty()) return false;
  std::size_t first = 0;
  {
    const Unlocked<Held> unlocked(growing);
    first = state_.device->event_synchronize_any(events);
  }
  spare_events_.push_back(clocks[first]->oldest_is_done());
  return true;
}

void StreamClocks::finish_all_work(Growing& growing) {
  Vector<std::pair<StreamClock*, std::uint32_t>> waited_for;  // each with the epoch that ends before the wait
  for (const auto& [stream, clock] : clocks_) {
    if (!clock->has_ended()) end_epoch(*clock, growing);
    waited_for.emplace_back(clock.get(), clock->epoch() - 1);
  }
  {
    const Unlocked<Held> unlocked(growing);
    state_.device->synchronize();
  }
  for (const auto& [clock, epoch] : waited_for) {
    spare_events_of(*clock, growing);
    clock->everything_is_done(epoch);
  }
}

void StreamClocks::spare_events_of(StreamClock& clock, const Held& /*held*/) {
  while (clock.has_events()) spare_events_.push_back(clock.oldest_is_done());
}

// --- memory that a stream may use -----------------------------------------------------------------------------------------

void StreamClocks::wait(StreamClock& waiter, const StreamClock& other, std::uint32_t epoch, Growing& growing) {
  const StreamClock::Mark mark = other.earliest_covering(epoch);
  {
    const Unlocked<Held> unlocked(growing);
    state_.device->stream_wait(waiter.stream().handle, mark.event);
  }
  waiter.waits_for(other, mark.epoch);
}

Reach StreamClocks::reach_into(const Arena& arena, const KnownStream& stream, Ordering ordering,
                               const Held& /*held*/) const {
  if (arena.stream == stream) return {Reach::Kind::all};
  const bool off = state_.options.cross_stream == CrossStream::off && !arena.has_ended.load(std::memory_order_relaxed);
  if (arena.pool.owner() != nullptr || off) return {Reach::Kind::none};
  const auto clock = clocks_.find(stream.key);
  const auto other = clocks_.find(arena.stream.key);
  if (clock == clocks_.end() || other == clocks_.end()) return {Reach::Kind::none};
  return ordering == Ordering::now ? clock->second->reach_into(*other->second)
                                   : clock->second->reach_by_waiting(*other->second);
}

bool StreamClocks::may_take(const Block& block, const KnownStream& stream, Ordering ordering, const Held& held) const {
  return reach_into(*block.arena, stream, ordering, held).covers(block.bin.epoch);
}

// --- streams that end -----------------------------------------------------------------------------------------------------

bool StreamClocks::record_end(const KnownStream& stream, Growing& growing) {
  StreamClock& clock = of(stream, growing);
  if (clock.has_ended()) return false;
  clock.recorded(record_event(stream, growing), clock.epoch());
  return true;
}

void StreamClocks::set_referred(std::function<Set<const StreamClock*>(const Held&)> referred) {
  referred_ = std::move(referred);
}

void StreamClocks::forget_but(const Set<StreamKey>& kept, Growing& growing) {
  Set<const StreamClock*> named;
  if (referred_) named = referred_(growing);
  for (auto at = clocks_.begin(); at != clocks_.end();) {
    StreamClock& clock = *(at++)->second;
    const StreamKey key = clock.stream().key;
    if (key.is_immortal() || kept.contains(key) || named.contains(&clock)) continue;
    spare_events_of(clock, growing);
    for (const auto& [other, its] : clocks_) its->forget(clock);
    clocks_.erase(key);
  }
}

// --- streams come -----------------------------------------------------------------------------------------------------------

Arena& StreamRegistry::arena_of_request(BlockPool& pool, Stream handle, const Held& held) {
  const KnownStream stream = identify(handle);
  if (Arena* known = pool.look_up(stream)) return *known;
  if (!stream.key.is_immortal()) note(stream, held);
  return arena_of(pool, stream, held);
}

// Returns the stream's arena. Memory freed in a new arena is of the epoch that the stream is in.
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

// Notes a stream. The stream that had the handle before has ended.
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

// Marks a stream as ended. No clock is made here: others may be looking through them, with the lock released.
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
  const Set<const Arena*> in_use = arenas_with_memory(growing);
  const auto stays = [&](const Arena& arena) {
    return arena.stream.key.is_immortal() || arena.requests != 0 || in_use.contains(&arena);
  };
  Set<StreamKey> kept;
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

Set<const Arena*> StreamRegistry::arenas_with_memory(const Held& /*held*/) const {
  Set<const Arena*> arenas;
  for (const auto& [address, head] : state_.blocks.segments()) {
    for (const Block* block = head; !block->is_edge() && !block->is_gap(); block = block->next)
      arenas.insert(block->arena);
  }
  return arenas;
}

CACHALOT_END
