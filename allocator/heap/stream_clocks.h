// The streams of one device as its heap knows them: how far the work of each has come, and which have ended.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <unordered_map>
#include <vector>

#include "base/host_memory.h"
#include "heap/cache_bridge.h"
#include "heap/heap_state.h"
#include "heap/pending_frees.h"
#include "heap/private_pools.h"
#include "pages/stream_clock.h"

CACHALOT_BEGIN

// StreamClocks know how far the work of each stream has come: which memory of one stream others may use, and which
// event to wait for.
//
// Clocks are made and erased only by a Growing, so that a Growing may walk over them and release the device's mutex in
// between.
class StreamClocks {
 public:
  explicit StreamClocks(HeapState& state) : state_(state) {}
  // Destroys the events.
  ~StreamClocks();
  StreamClocks(const StreamClocks&) = delete;
  StreamClocks& operator=(const StreamClocks&) = delete;

  // Returns the clock of a stream, made if there was none.
  StreamClock& of(const KnownStream& stream, Growing& growing) CACHALOT_GROWING;
  StreamClock* find(StreamKey stream, const Held& held) CACHALOT_HELD;
  // Returns how many streams have clocks.
  std::size_t count(const Held& held) const CACHALOT_HELD;

  // Queries the events of all streams, and records one on each whose free memory may serve the request.
  // `page_bytes`: free blocks of other streams are of use from this size on.
  void refresh(Request request, std::size_t page_bytes, Growing& growing) CACHALOT_GROWING;
  // Finds out how far the work of the streams that own idle memory has come: records an event on each that lives as long
  // as the process, and queries it for at most about 0.1 ms, which is more than an event needs on an idle stream.
  void look_at_idle(std::size_t page_bytes, Growing& growing) CACHALOT_GROWING;
  // Queries the events of all streams.
  void ask_all(Growing& growing) CACHALOT_GROWING;
  // Waits for one event, the first to complete, of the streams that own idle memory. Returns false if no event is recorded on
  // them that is not done. Throws CudaError.
  bool finish_next(std::size_t page_bytes, Growing& growing) CACHALOT_GROWING;
  // Waits for the device: after that, no work uses free memory, which may be unmapped. Memory that is freed meanwhile
  // is of later epochs. Throws CudaError.
  void finish_all_work(Growing& growing) CACHALOT_GROWING;
  // Makes a stream wait for another: it may then use what became free there up to an epoch, which an event covers.
  void wait(StreamClock& waiter, const StreamClock& other, std::uint32_t epoch, Growing& growing) CACHALOT_GROWING;

  // Returns which free blocks of an arena may serve a stream: in private pools, and with cross_stream:off, its own
  // alone.
  Reach reach_into(const Arena& arena, const KnownStream& stream, Ordering ordering,
                   const Held& held) const CACHALOT_HELD;
  bool may_take(const Block& block, const KnownStream& stream, Ordering ordering, const Held& held) const CACHALOT_HELD;

  bool captures(Stream stream, Held& held) CACHALOT_HELD;
  // Records an event after the stream's last work and ends its clock, unless it has ended before. Throws CudaError, and
  // then has not ended it.
  bool record_end(const KnownStream& stream, Growing& growing) CACHALOT_GROWING;
  // Sets the function that lists the clocks that must stay because something beside blocks refers to them.
  void set_referred(std::function<Set<const StreamClock*>(const Held&)> referred);
  // Forgets the clocks of mortal streams, but these.
  void forget_but(const Set<StreamKey>& kept, Growing& growing) CACHALOT_GROWING;

 private:
  void end_epoch(StreamClock& clock, const Held& held) CACHALOT_HELD;
  void record_epoch(StreamClock& clock, Held& held) CACHALOT_HELD;
  Event record_event(const KnownStream& stream, Held& held) CACHALOT_HELD;
  void ask_events(StreamClock& clock, Held& held) CACHALOT_HELD;
  void spare_done_events(StreamClock& clock, Held& held) CACHALOT_HELD;
  bool event_is_done(Event event, Held& held) CACHALOT_HELD;
  bool may_record(const StreamClock& clock, Request request, std::size_t page_bytes,
                  const Held& held) const CACHALOT_HELD;
  bool stays(StreamKey stream, const Held& held) const CACHALOT_HELD;
  bool owns_idle_pages(StreamKey stream, std::size_t page_bytes, const Held& held) const CACHALOT_HELD;
  void spare_events_of(StreamClock& clock, const Held& held) CACHALOT_HELD;

  HeapState& state_;
  HashMap<StreamKey, std::unique_ptr<StreamClock>> clocks_ CACHALOT_GUARDED_BY(device_lock);
  Vector<Event> spare_events_ CACHALOT_GUARDED_BY(device_lock);
  std::function<Set<const StreamClock*>(const Held&)> referred_;
};

// The StreamRegistry knows the streams that are created and destroyed. Immortal ones are named by their handle and do
// not need it.
//
// A stream ends when the program says so (stream_ends), which records an event after its last work; or when its handle
// is that of another stream: then only a wait for the device shows that its work is done. From then on the stream has
// no caches, no event is recorded on it, and other streams may use its memory as soon as its work is done. Memory that
// becomes free later counts as of its last epoch, since no work came after that.
//
// A stream without memory is forgotten, ended or not; it may come again.
class StreamRegistry {
 public:
  StreamRegistry(HeapState& state, PrivatePools& pools, StreamClocks& clocks, PendingFrees& frees, CacheBridge& caches)
      : state_(state), pools_(pools), clocks_(clocks), frees_(frees), caches_(caches) {}
  StreamRegistry(const StreamRegistry&) = delete;
  StreamRegistry& operator=(const StreamRegistry&) = delete;

  // Returns the stream that has the handle now. Throws InvalidArgument if none has.
  KnownStream identify(Stream handle) const {
    return cachalot::identify(*state_.device, handle, state_.immortal_streams);
  }
  // CachingAllocator::stream_ends; takes the lock itself.
  void stream_ends(Stream handle);

  // Returns the arena of a request that the fast path has not found.
  Arena& arena_of_request(BlockPool& pool, Stream handle, const Held& held) CACHALOT_HELD;
  // Returns the arena of a stream, made if there was none.
  Arena& arena_of(BlockPool& pool, const KnownStream& stream, const Held& held) CACHALOT_HELD;
  // Returns the arena of memory that no stream has used: as that of a stream that has ended, whose work is done.
  Arena& arena_of_nobody(BlockPool& pool, Growing& growing) CACHALOT_GROWING;

  // Forgets streams without memory once there are many, which costs each stream a look at a few blocks.
  void forget_if_many(Growing& growing) CACHALOT_GROWING;
  void forget_streams_without_memory(Growing& growing) CACHALOT_GROWING;

 private:
  static constexpr std::size_t kFewArenas = 128;

  void note(const KnownStream& stream, const Held& held) CACHALOT_HELD;
  void mark_ended(const KnownStream& stream, const Held& held) CACHALOT_HELD;
  bool has_arena(StreamKey stream, const Held& held) const CACHALOT_HELD;
  std::size_t default_arenas(const Held& held) const CACHALOT_HELD;
  Set<const Arena*> arenas_with_memory(const Held& held) const CACHALOT_HELD;

  HeapState& state_;
  PrivatePools& pools_;
  StreamClocks& clocks_;
  PendingFrees& frees_;
  CacheBridge& caches_;
  // The stream that had each mortal handle last.
  HashMap<Stream, StreamKey> mortal_ CACHALOT_GUARDED_BY(device_lock);
  std::size_t most_arenas_ CACHALOT_GUARDED_BY(device_lock) = kFewArenas;  // of the default pools
};

CACHALOT_END
