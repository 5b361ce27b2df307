// The HeapState has the data of one device's heap: blocks, pools, counters, options, and the modes in which a malloc
// must do more than take a free block. Its functions are the steps of every malloc and free.
//
// Its first members are those that a malloc touches, in this order; docs/performance.md counts on it.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>

#include "base/bytes.h"
#include "base/check.h"
#include "base/locks.h"
#include "cachalot/change.h"
#include "cachalot/device.h"
#include "cachalot/options.h"
#include "caches/thread_caches.h"
#include "device/addresses.h"
#include "heap/ledger.h"
#include "heap/observers.h"
#include "heap/private_pool.h"
#include "heap/request.h"
#include "observe/counters.h"
#include "observe/pool_reserves.h"
#include "pages/page_heap.h"
#include "policy/torch_policy.h"
#include "segments/block_heap.h"

CACHALOT_BEGIN

struct HeapState {
  HeapState(std::shared_ptr<Device> of_device, PageMap& page_map, const Options& options);
  HeapState(const HeapState&) = delete;
  HeapState& operator=(const HeapState&) = delete;

  // A mode makes calls leave the fast path, which asks for all modes at once.
  enum Mode : std::uint32_t {
    kRedirecting = 1,   // requests are redirected into private pools
    kWaitingFrees = 2,  // frees wait for events or for the end of a capture
    kAging = 4,         // garbage collection is on
    kObserved = 8,      // someone looks at changes
    kBypassed = 16,     // caching is off
    kContexts = 32,     // blocks may hold the context of their allocation, from then on for good
    kCaching = 64,      // there are thread caches, from then on for good
  };
  // In these modes every malloc and free must come to the heap.
  static constexpr std::uint32_t kNotThroughCaches = kRedirecting | kWaitingFrees | kObserved | kBypassed;

  void set_mode(Mode mode, bool on, const Held& held) CACHALOT_HELD;
  bool is(Mode mode, const Held& /*held*/) const CACHALOT_HELD { return (modes & mode) != 0; }
  bool capturing(const Held& /*held*/) const CACHALOT_HELD { return captures != 0; }
  // Returns true if thread caches serve small blocks now.
  bool caches_are_open() const { return open_caches.load(std::memory_order_acquire) != HotCache::kNone; }
  void open_or_close_caches(const Held& held) CACHALOT_HELD;
  // Returns false if nothing was cached.
  bool drain_caches(const Held& held) CACHALOT_HELD;
  // Switches garbage collection, which acts only under a memory limit.
  void update_aging(const Held& held) CACHALOT_HELD;

  BlockPool& small(const Held& /*held*/) CACHALOT_HELD { return default_pools[0]; }
  BlockPool& large(const Held& /*held*/) CACHALOT_HELD { return default_pools[1]; }
  // Returns the pools of a private pool, or the default pools (null).
  PoolPair pools_of(const PrivatePool* owner, const Held& held) const CACHALOT_HELD;

  // Returns the best fit among an arena's free blocks, or null.
  Block* find_free(Request request, const Held& held) const CACHALOT_HELD;
  // Does the same for a new request, and advances the clock that tells the age of free blocks.
  Block* find_free_and_age(Request request, const Held& held) CACHALOT_HELD;
  bool splits(const Block& block, Request request, const Held& held) const CACHALOT_HELD;
  // Takes a free block, or with `split` its first `rounded` bytes, and counts it.
  void* hand_out(Block& block, std::size_t rounded, std::size_t bytes, bool split, const Context& context,
                 const Held& held) CACHALOT_HELD;
  // Returns a free block of the request's arena with `rounded` aligned bytes, or null, and advances the clock: one of the
  // smallest, or the best fit of the request, which has room for them anywhere. Returns null only if no free block has them.
  Block* find_aligned_and_age(Request request, std::size_t rounded, Alignment alignment,
                              const Held& held) CACHALOT_HELD;
  // Takes the first `rounded` aligned bytes of a free block, which has as many, and counts them.
  Block& hand_out_aligned(Block& block, std::size_t rounded, std::size_t bytes, Alignment alignment,
                          const Context& context, const Held& held) CACHALOT_HELD;
  // These are the two halves of a free: the block is no longer allocated; the block is free.
  void count_free_requested(Block& block, const Context& context, const Held& held) CACHALOT_HELD;
  void finish_free(Block& block, const Context& context, const Held& held) CACHALOT_HELD;
  // Locks by itself. Returns the context of a live allocation, or null.
  Context context_of(const Block& block, const void* ptr);
  static bool is_live(const Block& block, const void* ptr) {
    const auto address = as_address(ptr);
    return block.address == address &&
           ((block.size_and_flags & Block::kFlagBits) == Block::kAllocated || block.is_lent(address));
  }

  std::atomic<std::uint64_t> open_caches{HotCache::kNone};  // their id while they are open
  bool wants_caches CACHALOT_GUARDED_BY(device_lock) = false;
  std::unique_ptr<ThreadCaches> caches;  // made when first wanted, before they are open

  mutable Mutex mutex;
  std::uint32_t modes CACHALOT_GUARDED_BY(device_lock) = 0;
  bool rounds_by_divisions CACHALOT_GUARDED_BY(device_lock) = false;
  bool splits_everything CACHALOT_GUARDED_BY(device_lock) = false;  // large blocks as small ones
  Options options CACHALOT_GUARDED_BY(device_lock);
  alignas(kCacheLine) std::array<BlockPool, 2> default_pools CACHALOT_GUARDED_BY(device_lock) = {
      BlockPool{PoolKind::small, {}, nullptr, nullptr}, BlockPool{PoolKind::large, {}, nullptr, nullptr}};
  Counters counters CACHALOT_GUARDED_BY(device_lock);
  BlockHeap blocks CACHALOT_GUARDED_BY(device_lock);

  const std::shared_ptr<Device> device;
  const int index;
  const bool immortal_streams;
  mutable std::mutex growth_mutex;
  int captures CACHALOT_GUARDED_BY(device_lock) = 0;  // redirections for a capture
  Ledger ledger CACHALOT_GUARDED_BY(device_lock){*this};
  Observers observers{*this};
  PoolReserves pool_reserves CACHALOT_GUARDED_BY(device_lock);

 private:
  void observe_alloc(Block& block, const InactiveSplit& split, const Context& context, const Held& held) CACHALOT_HELD;
  void finish_observed_free(Block& block, const Context& context, const Held& held) CACHALOT_HELD;
  void forget_context(const Block& block, const Held& held) CACHALOT_HELD;
};

CACHALOT_FAST_PATH Block* HeapState::find_free(Request request, const Held& /*held*/) const {
  Block* block = request.arena->bins.best_fit(request.rounded);
  return block != nullptr && may_use(block->size(), request.rounded, options) ? block : nullptr;
}

CACHALOT_FAST_PATH Block* HeapState::find_free_and_age(Request request, const Held& held) {
  if ((modes & kAging) != 0) [[unlikely]]
    ++request.pool().clock;
  return find_free(request, held);
}

CACHALOT_FAST_PATH bool HeapState::splits(const Block& block, Request request, const Held& /*held*/) const {
  const BlockPool& pool = block.arena->pool;
  // No branch: see should_split.
  const auto rule = static_cast<PoolKind>(static_cast<unsigned>(pool.kind()) & unsigned{!splits_everything});
  return may_split(pool) && should_split(rule, block.size(), request.rounded, options);
}

CACHALOT_FAST_PATH void* HeapState::hand_out(Block& block, std::size_t rounded, std::size_t bytes, bool split,
                                             const Context& context, const Held& held) {
  const PoolKind kind = block.arena->pool.kind();
  const InactiveSplit change = blocks.allocate(block, rounded, bytes, split);
  const std::size_t size = block.size();
  counters.allocated(kind, as_signed(size), as_signed(bytes));
  counters.inactive_split(kind, change.blocks, change.bytes);
  if (is_oversize(size, options)) [[unlikely]]
    counters.oversize_allocation(1);
  if ((modes & kObserved) != 0) [[unlikely]]
    observe_alloc(block, change, context, held);
  return as_pointer(block.address);
}

CACHALOT_FAST_PATH void HeapState::count_free_requested(Block& block, const Context& context, const Held& held) {
  const std::size_t size = block.size();
  counters.free_requested(block.arena->pool.kind(), as_signed(size));
  if (is_oversize(size, options)) [[unlikely]]
    counters.oversize_allocation(-1);
  if ((modes & kObserved) != 0) [[unlikely]]
    observers.observe(Observers::change_of(Change::Action::free_requested, block, context), held);
}

CACHALOT_FAST_PATH void HeapState::finish_free(Block& block, const Context& context, const Held& held) {
  if ((modes & (kObserved | kContexts)) != 0) [[unlikely]] {
    if ((modes & kObserved) != 0) return finish_observed_free(block, context, held);
    forget_context(block, held);
  }
  const PoolKind kind = block.arena->pool.kind();
  counters.free_completed(kind, as_signed(block.requested));
  const InactiveSplit change = blocks.put_back(block);
  counters.inactive_split(kind, change.blocks, change.bytes);
}

CACHALOT_END
