// The StreamRegistry knows the streams that are created and destroyed. Immortal ones are named by their handle and do
// not need it.
//
// A stream ends when the program says so (stream_ends), which records an event after its last work; or when its handle
// is that of another stream: then only a wait for the device shows that its work is done. From then on the stream has
// no caches, no event is recorded on it, and other streams may use its memory as soon as its work is done. Memory that
// becomes free later counts as of its last epoch, since no work came after that.
//
// A stream without memory is forgotten, ended or not; it may come again.
#pragma once

#include <cstddef>
#include <set>
#include <unordered_map>

#include "heap/cache_bridge.h"
#include "heap/heap_state.h"
#include "heap/pending_frees.h"
#include "heap/private_pools.h"
#include "heap/stream_clocks.h"

CACHALOT_BEGIN

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
  // CachingAllocator::stream_ends; locks by itself.
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
  std::set<const Arena*> arenas_with_memory(const Held& held) const CACHALOT_HELD;

  HeapState& state_;
  PrivatePools& pools_;
  StreamClocks& clocks_;
  PendingFrees& frees_;
  CacheBridge& caches_;
  // Of each handle that is not immortal, the stream that had it last.
  std::unordered_map<Stream, StreamKey> mortal_ CACHALOT_GUARDED_BY(device_lock);
  std::size_t most_arenas_ CACHALOT_GUARDED_BY(device_lock) = kFewArenas;  // of the default pools
};

CACHALOT_END
