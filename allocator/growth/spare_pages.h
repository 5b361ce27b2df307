// SparePages serve requests of the page heap from free memory of other arenas, without a call of the driver: small requests
// from what is free beside large blocks, and requests of every stream from memory that no stream has used.
#pragma once

#include "growth/growth.h"
#include "heap/private_pools.h"
#include "heap/stream_registry.h"
#include "pages/page_heap.h"

CACHALOT_BEGIN

class SparePages {
 public:
  SparePages(HeapState& state, PageHeap& pages, PrivatePools& pools, StreamRegistry& streams)
      : state_(state), pages_(pages), pools_(pools), streams_(streams) {}
  SparePages(const SparePages&) = delete;
  SparePages& operator=(const SparePages&) = delete;

  // Returns what is left of a page beside large blocks, for a small request; or null.
  Block* find_beside(Request request, const Held& held) CACHALOT_HELD;
  // Returns a page of what is free beside large blocks, for a small request; or null.
  Block* take_page(Request request, const Held& held) CACHALOT_HELD;
  // Returns a part of the memory that no stream has used, which is the request's stream's own from then on; or null. Of a
  // small request it is a page.
  Block* take_unused(Request request, const Held& held) CACHALOT_HELD;
  // Returns pages of large blocks that served small ones, and do no more, to the large blocks of the growth's pools.
  void return_whole_pages(const Growth& growth, const Held& held) CACHALOT_HELD;

 private:
  Block* take_page_of(const Arena& arena, Request request, const Held& held) CACHALOT_HELD;
  Arena& large_arena_beside(Request request, const Held& held) CACHALOT_HELD;

  HeapState& state_;
  PageHeap& pages_ CACHALOT_GUARDED_BY(device_lock);
  PrivatePools& pools_;
  StreamRegistry& streams_;
};

CACHALOT_END
