// The CacheBridge stands between one device's heap and its thread caches: blocks that they are given, blocks that come back,
// and the sums that statistics need.
//
// Nothing grows on account of a cache: before the driver is called, all are drained, unless several threads come to that
// again and again (drain_or_grow).
//
// Whatever comes to the heap while there are caches: sizes above 64 KiB; everything while a pool is recorded into, frees wait
// for other streams (each malloc looks whether they are done), history is on or caching is off; frees of blocks that other
// streams use, and of blocks that a cache cannot take. Rounding to divisions of powers of two is the heap's alone, and closes
// the caches, too.
#pragma once

#include <cstddef>
#include <set>

#include "heap/heap_state.h"

namespace cachalot {

class CacheBridge {
 public:
  explicit CacheBridge(HeapState& state) : state_(state) {}
  CacheBridge(const CacheBridge&) = delete;
  CacheBridge& operator=(const CacheBridge&) = delete;

  // Makes the caches when they are first wanted.
  void want_caches(bool wanted, const Held& held) CACHALOT_HELD;
  // Every thread's cached blocks go back to the heap. Locks by itself.
  void drain();
  // For a small block, of which the heap has none. False: the heap should rather grow.
  bool drain_or_grow(const Held& held) CACHALOT_HELD;

  // This thread's cache for a stream; nullptr: there is none now.
  StreamCache* cache_of(const KnownStream& stream, const Held& held) CACHALOT_HELD;
  // Whether small requests find no free block, when one was last looked for: nothing is cached then (Growth::merges_small).
  void note_small_is_used_up(bool used_up, const Held& held) CACHALOT_HELD;
  // A free block of the heap for the cache; as HeapState::hand_out, but that it is neither allocated nor counted yet.
  Block& begin_lease(StreamCache& cache, Block& block, Request request, const Held& held) CACHALOT_HELD;
  // Some more of the size, of what is free already. The heap never grows for it.
  void refill(StreamCache& cache, Request request, const Held& held) CACHALOT_HELD;
  // Before anything that the heap does to a live block while there are caches: it becomes one of the heap's.
  void detach(Block& block, const Held& held) CACHALOT_HELD;
  void end_stream(StreamKey stream, const Held& held) CACHALOT_HELD;
  void end_streams_but(const std::set<StreamKey>& kept, const Held& held) CACHALOT_HELD;

  // A thread has come to the heap: sets what caches may hold, and gathers the sums of threads, before the statistics change. So
  // peaks are exact as long as threads take turns, however small their steps. Requires: there are caches.
  void update_sums(const Held& held) CACHALOT_HELD;
  // Gathers all sums, while no thread is in its cache. Nothing without caches.
  void gather(const Held& held) CACHALOT_HELD;
  // The same, under a Recall.
  void gather_recalled(const Held& held) CACHALOT_HELD;

 private:
  void free_cached(Block& block, const Held& held) CACHALOT_HELD;
  void end_lease(Block& block, const Held& held) CACHALOT_HELD;

  HeapState& state_;
  std::size_t device_bytes_ CACHALOT_GUARDED_BY(device_lock) = 0;  // known since there are caches
  bool small_is_used_up_ CACHALOT_GUARDED_BY(device_lock) = false;
};

}  // namespace cachalot
