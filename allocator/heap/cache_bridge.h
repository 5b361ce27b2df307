// The CacheBridge moves blocks between one device's heap and its thread caches, and gathers the sums that statistics
// need.
//
// The heap does not grow because of a cache: before the driver is called, all caches are drained, unless several
// threads come to that again and again (drain_or_grow).
//
// While there are caches, these requests still come to the heap: sizes above 64 KiB; everything while a pool is
// recorded into, frees wait for other streams (each malloc looks whether they are done), history is on or caching is
// off; frees of blocks that other streams use, and of blocks that a cache cannot take. Rounding to divisions of powers
// of two closes the caches, too.
#pragma once

#include <cstddef>
#include <set>

#include "base/host_memory.h"
#include "heap/heap_state.h"

CACHALOT_BEGIN

class CacheBridge {
 public:
  explicit CacheBridge(HeapState& state) : state_(state) {}
  CacheBridge(const CacheBridge&) = delete;
  CacheBridge& operator=(const CacheBridge&) = delete;

  // Makes the caches when they are first wanted.
  void want_caches(bool wanted, const Held& held) CACHALOT_HELD;
  // Returns every thread's cached blocks to the heap. Takes the lock itself.
  void drain();
  // Drains the caches for a small request that finds no free block. Returns false if the heap should rather grow.
  bool drain_or_grow(const Held& held) CACHALOT_HELD;

  // Returns this thread's cache for a stream, or null if there is none now.
  StreamCache* cache_of(const KnownStream& stream, const Held& held) CACHALOT_HELD;
  // Notes whether the last small request found no free block: then nothing is cached (Growth::mixes_sizes).
  void note_small_is_used_up(bool used_up, const Held& held) CACHALOT_HELD;
  // Takes a free block of the heap for the cache, as HeapState::hand_out, but without counting it as allocated.
  Block& begin_lease(StreamCache& cache, Block& block, Request request, const Held& held) CACHALOT_HELD;
  // Gives the cache more blocks of the size, as far as free ones serve. The heap never grows for it.
  void refill(StreamCache& cache, Request request, const Held& held) CACHALOT_HELD;
  // Ends the lease of a live block, if it has one, before the heap frees it or records a use of it.
  void detach(Block& block, const Held& held) CACHALOT_HELD;
  void end_stream(StreamKey stream, const Held& held) CACHALOT_HELD;
  void end_streams_but(const Set<StreamKey>& kept, const Held& held) CACHALOT_HELD;

  // Sets how much caches may hold, and gathers the sums of all threads; called when a thread comes to the heap, before
  // the statistics change. So peaks are exact where one thread alone used its cache since the last time. Requires
  // caches.
  void update_sums(const Held& held) CACHALOT_HELD;
  // Gathers all sums while no thread is in its cache. Does nothing without caches.
  void gather(const Held& held) CACHALOT_HELD;
  // Does the same under a Recall of the caller.
  void gather_recalled(const Held& held) CACHALOT_HELD;

 private:
  void free_cached(Block& block, const Held& held) CACHALOT_HELD;
  void end_lease(Block& block, const Held& held) CACHALOT_HELD;

  HeapState& state_;
  std::size_t device_bytes_ CACHALOT_GUARDED_BY(device_lock) = 0;  // known since there are caches
  bool small_is_used_up_ CACHALOT_GUARDED_BY(device_lock) = false;
};

CACHALOT_END
