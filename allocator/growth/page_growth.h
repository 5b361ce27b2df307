// PageGrowth gets memory in pages that can be mapped anywhere: the page heap. Idle pages of other holes serve a request
// before new memory does.
//
// The page heap changes only while the growth mutex and the device's mutex are held.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "growth/growth.h"
#include "growth/page_driver.h"
#include "growth/sharing.h"
#include "growth/supply.h"
#include "heap/cache_bridge.h"
#include "heap/private_pools.h"
#include "heap/stream_clocks.h"
#include "pages/driver_costs.h"
#include "pages/page_heap.h"
#include "pages/placement.h"

CACHALOT_BEGIN

// SparePages serve requests of the page heap from free memory of other arenas, without a call of the driver: small requests
// from free memory beside large blocks, and requests of every stream from memory that no stream has used.
class SparePages {
 public:
  SparePages(HeapState& state, PageHeap& pages, PrivatePools& pools, StreamRegistry& streams)
      : state_(state), pages_(pages), pools_(pools), streams_(streams) {}
  SparePages(const SparePages&) = delete;
  SparePages& operator=(const SparePages&) = delete;

  // Returns the rest of a page beside large blocks, for a small request; or null.
  Block* find_beside(Request request, const Held& held) CACHALOT_HELD;
  // Returns a page of free memory beside large blocks, for a small request; or null.
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

class PageGrowth final : public Growth {
 public:
  // The parts that it works with.
  struct Parts {
    PrivatePools& pools;
    StreamClocks& clocks;
    StreamRegistry& streams;
    CacheBridge& caches;
    Recovery& recovery;
    SharedHandles& handles;
    SavedMemory& saved;
  };
  // Requires that the heap has no memory yet. `page_bytes`: the device's granularity, a power of two.
  PageGrowth(HeapState& state, const Parts& parts, std::size_t page_bytes);

  Block* find(Request request, const Held& held) override CACHALOT_HELD;
  Block* find_beside(Request request, const Held& held) override CACHALOT_HELD;
  Block* obtain(Request request, const Context& context, Growing& growing) override CACHALOT_GROWING;
  bool may_scatter() const override { return true; }
  Block& cut_contiguous(Block& block, Request request, const Held& held) override CACHALOT_HELD;
  bool mixes_sizes() const override { return true; }
  bool caches_by_default() const override { return true; }
  void release_free(PrivatePool* owner, Reservation reservation, Growing& growing) override CACHALOT_GROWING;
  std::size_t trim(const TrimGoal& goal, Growing& growing) override CACHALOT_GROWING;
  bool add_unused(std::size_t bytes, Growing& growing) override CACHALOT_GROWING;
  bool has_leftovers(const PrivatePool& pool, const Held& held) const override CACHALOT_HELD;
  void release_addresses(const PrivatePool& pool, Growing& growing) override CACHALOT_GROWING;
  void give_back_everything() noexcept override;
  bool is_expandable() const override { return true; }
  PoolKind reserved_in(const Block& head, const Held& held) const override CACHALOT_HELD;
  std::size_t asleep_bytes(Address begin, Address end, const Held& held) const override CACHALOT_HELD;
  std::size_t handle_count(const Block& block, const Held& held) const override CACHALOT_HELD;
  SharedMemory share(const Block& block, Address base, Growing& growing) override CACHALOT_GROWING;
  std::vector<AddressRange> mapped_addresses(const Held& held) const override CACHALOT_HELD;
  bool may_extend_segments() const override { return true; }
  void separate_kinds(PrivatePool& pool, Growing& growing) override CACHALOT_GROWING;
  std::string validate(const Held& held) const override CACHALOT_HELD;
  std::size_t metadata_bytes(const Held& held) const override CACHALOT_HELD;

  // These serve SleepingPools.
  PageHeap& pages() { return pages_; }
  PageDriver& driver() { return driver_; }

 private:
  // The search of memory for one request (page_search.cpp).
  class Search;

  std::size_t movable_handle_bytes(const Held& held) const CACHALOT_HELD;
  std::size_t large_handle_bytes(const Held& held) const CACHALOT_HELD;
  void reserve_range(Request request, Growing& growing) CACHALOT_GROWING;
  void drop_stale_views(Growing& growing) CACHALOT_GROWING;
  void drop_done_views(std::size_t enough, Growing& growing) CACHALOT_GROWING;
  void collect_garbage(Growing& growing) CACHALOT_GROWING;

  // These serve allocations in one handle.
  Block* find_contiguous(Request request, const Arena& arena, Ordering ordering, const Held& held) const CACHALOT_HELD;
  PageHeap::Stretch contiguous_part(const Block& block, Request request, const Held& held) const CACHALOT_HELD;

  HeapState& state_;
  PrivatePools& pools_;
  StreamClocks& clocks_;
  StreamRegistry& streams_;
  CacheBridge& caches_;
  Recovery& recovery_;
  PageHeap pages_ CACHALOT_GUARDED_BY(device_lock);
  SparePages spare_;
  DriverCosts costs_ CACHALOT_GUARDED_BY(device_lock);
  Placement placement_ CACHALOT_GUARDED_BY(device_lock);
  PageDriver driver_;
  std::size_t views_at_next_look_ CACHALOT_GUARDED_BY(device_lock) = 0;  // of drop_stale_views
};

CACHALOT_END
