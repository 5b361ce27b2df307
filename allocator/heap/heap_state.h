// The HeapState has the data of one device's heap: blocks, pools, counters, options, and the modes in which a malloc
// must do more than take a free block. Its functions are the steps of every malloc and free.
//
// Its first members are those that a malloc touches, in this order; docs/performance.md counts on it.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "base/check.h"
#include "base/host_memory.h"
#include "base/locks.h"
#include "blocks/block.h"
#include "blocks/block_heap.h"
#include "blocks/block_pool.h"
#include "blocks/counters.h"
#include "cachalot/device.h"
#include "cachalot/events.h"
#include "cachalot/options.h"
#include "cachalot/private_pool.h"
#include "caches/thread_caches.h"
#include "device/addresses.h"
#include "heap/ledger.h"
#include "heap/observers.h"
#include "policy/torch_policy.h"

CACHALOT_BEGIN

// An Alignment says which addresses may serve a request: those whose byte at `offset` has an address that is a multiple of
// `bytes`, a power of two. The offset is a multiple of kBlockGranularity, as every block's address is.
struct Alignment {
  std::size_t bytes = kBlockGranularity;
  std::size_t offset = 0;

  // Returns the most bytes that lie between the start of a block and the first such address in it.
  std::size_t slack() const { return bytes > kBlockGranularity ? bytes - kBlockGranularity : 0; }
  // Returns the first such address from `address` on, which is a multiple of kBlockGranularity.
  Address first_from(Address address) const {
    return slack() == 0 ? address : round_up(address + offset, bytes) - offset;
  }
};

// An AllocationPlace says what a malloc demands of the memory beside its size.
struct AllocationPlace {
  bool contiguous = false;                 // of the page heap: in one handle
  bool plain = false;                      // in a segment of the device's malloc
  std::optional<PrivatePool*> owner = {};  // of plain memory: null is the default pools; nullopt: the thread's pool
  Alignment alignment;

  bool is_anywhere() const { return !contiguous && !plain && alignment.slack() == 0; }
};

// A Request is a malloc after the policy's decisions: the size of the block, and its arena. Passed by value, so that it stays
// in registers.
struct Request {
  std::size_t bytes;        // asked for
  std::size_t rounded;      // the block wanted
  Arena* arena;             // pool and stream
  bool contiguous = false;  // of the page heap: in one handle
  BlockPool& pool() const { return arena->pool; }
  const KnownStream& stream() const { return arena->stream; }
};

// An Ordering says which memory of other streams a search may use: memory whose last use is before the stream's next
// work, or also memory of which this holds once the stream waits for events that are recorded already.
enum class Ordering : std::uint8_t { now, after_wait };

// An ArenaHold keeps an arena that is being asked for memory and may have none yet.
class ArenaHold {
 public:
  explicit ArenaHold(Arena& arena) : arena_(arena) { ++arena_.requests; }
  ~ArenaHold() { --arena_.requests; }
  ArenaHold(const ArenaHold&) = delete;
  ArenaHold& operator=(const ArenaHold&) = delete;

 private:
  Arena& arena_;
};

class Growth;

// GrowthOfPools are the growths of a device's pools: the one that the option `heap` selects, and that of segments, which serves
// plain memory and pools with a segment provider.
struct GrowthOfPools {
  Growth* usual = nullptr;
  bool usual_in_ranges = false;
  Growth* segments = nullptr;
};

// A PrivatePool is a pool beside the default one: of a graph, of the program, or of a tag.
//
// It lives until it has neither users nor memory, and is awake (Recovery::release_unused_pools).
// All members are guarded by the device's mutex.
struct PrivatePool : HostObject {
  PrivatePool(PoolId pool_id, const GrowthOfPools& growth);

  PoolId id;
  int use_count = 1;
  std::size_t holds = 0;  // segments or handles that it has from the device, and requests for some
  bool may_split = true;
  std::shared_ptr<SegmentProvider> provider;  // null: the device
  BlockPool small;
  BlockPool large;
  std::array<BlockPool, 2> plain;         // its plain memory, small and large
  bool takes_plain = false;               // all its requests are for plain memory
  std::string tag;                        // its name, if it is a tag's
  bool is_asleep = false;                 // its handles are, or some: nothing is allocated from it
  std::optional<EvictOptions> evictable;  // it gives way if memory runs short
  bool has_lost_content = false;          // it slept without a copy, and no ensure was told yet
  std::size_t hold_count = 0;             // of ensure: it does not give way
  std::uint64_t ensured_at = 0;           // by the heap's count of ensures
};

// Returns "tag 'weights'" or "pool (3, 0)", for messages.
std::string name_of(const PrivatePool& pool);
// Throws InvalidArgument if the pool is asleep; null is awake. `purpose` completes "nothing can be …" in the message.
void require_awake(const PrivatePool* pool, int device, const char* purpose = "allocated");

inline bool may_split(const BlockPool& pool) { return pool.owner() == nullptr || pool.owner()->may_split; }
inline bool is_asleep(const BlockPool& pool) { return pool.owner() != nullptr && pool.owner()->is_asleep; }

// A PoolHold keeps a private pool that is being asked for memory. The pool may have no segment yet, and its last user
// may release it while the lock is released.
class PoolHold {
 public:
  explicit PoolHold(PrivatePool* pool) : pool_(pool) {
    if (pool_ != nullptr) ++pool_->holds;
  }
  ~PoolHold() {
    if (pool_ != nullptr) --pool_->holds;
  }
  PoolHold(const PoolHold&) = delete;
  PoolHold& operator=(const PoolHold&) = delete;

 private:
  PrivatePool* pool_;
};

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
    kContexts = 32,     // blocks may hold the context of their allocation, from then on permanently
    kCaching = 64,      // there are thread caches, from then on permanently
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
  // Returns true for a pool of plain memory beside a pool of another growth.
  bool is_plain(const BlockPool& pool, const Held& held) const CACHALOT_HELD;
  // Returns the pool of plain memory beside a pool, with the same owner and kind: the pool itself if all its memory is
  // the device's malloc's, or its provider's.
  BlockPool& plain_beside(BlockPool& pool, const Held& held) CACHALOT_HELD;
  // Returns the pools of a private pool, or the default pools (null).
  PoolPair pools_of(const PrivatePool* owner, const Held& held) const CACHALOT_HELD;
  BlockPool& pool_of(PrivatePool* owner, PoolKind kind, const Held& held) CACHALOT_HELD;

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
  bool takes_plain CACHALOT_GUARDED_BY(device_lock) = false;  // requests are for plain memory, those of tags excepted
  Options options CACHALOT_GUARDED_BY(device_lock);
  alignas(kCacheLine) std::array<BlockPool, 2> default_pools CACHALOT_GUARDED_BY(device_lock) = {
      BlockPool{PoolKind::small, {}, nullptr}, BlockPool{PoolKind::large, {}, nullptr}};
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
  // Plain memory beside the default pools, where that is not segments of the device's malloc.
  std::array<BlockPool, 2> plain_pools CACHALOT_GUARDED_BY(device_lock) = {BlockPool{PoolKind::small, {}, nullptr},
                                                                           BlockPool{PoolKind::large, {}, nullptr}};

 private:
  void observe_alloc(Block& block, const InactiveSplit& split, const Context& context, const Held& held) CACHALOT_HELD;
  void finish_observed_free(Block& block, const Context& context, const Held& held) CACHALOT_HELD;
  void forget_context(const Block& block, const Held& held) CACHALOT_HELD;
};

CACHALOT_FAST_PATH Block* HeapState::find_free(Request request, const Held& /*held*/) const {
  Block* block = request.arena->bins.best_fit(request.rounded);
  return block != nullptr && may_use(block->size(), request.rounded, request.arena->rules) ? block : nullptr;
}

CACHALOT_FAST_PATH Block* HeapState::find_free_and_age(Request request, const Held& held) {
  if ((modes & kAging) != 0) [[unlikely]]
    ++request.pool().clock;
  return find_free(request, held);
}

CACHALOT_FAST_PATH bool HeapState::splits(const Block& block, Request request, const Held& /*held*/) const {
  const BlockPool& pool = block.arena->pool;
  // Large blocks in ranges are split as small ones. No branch: see should_split.
  const auto rule = static_cast<PoolKind>(static_cast<unsigned>(pool.kind()) & unsigned{!block.arena->in_ranges});
  return may_split(pool) && should_split(rule, block.size(), request.rounded, block.arena->rules);
}

CACHALOT_FAST_PATH void* HeapState::hand_out(Block& block, std::size_t rounded, std::size_t bytes, bool split,
                                             const Context& context, const Held& held) {
  const PoolKind kind = block.arena->pool.kind();
  const InactiveSplit change = blocks.allocate(block, rounded, bytes, split);
  const std::size_t size = block.size();
  counters.allocated(kind, as_signed(size), as_signed(bytes));
  counters.inactive_split(kind, change.blocks, change.bytes);
  if (is_oversize(size, block.arena->rules)) [[unlikely]]
    counters.oversize_allocation(1);
  if ((modes & kObserved) != 0) [[unlikely]]
    observe_alloc(block, change, context, held);
  return as_pointer(block.address);
}

CACHALOT_FAST_PATH void HeapState::count_free_requested(Block& block, const Context& context, const Held& held) {
  const std::size_t size = block.size();
  counters.free_requested(block.arena->pool.kind(), as_signed(size));
  if (is_oversize(size, block.arena->rules)) [[unlikely]]
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

// These functions answer questions about single blocks, and about the segment that a block lies in.
struct BlockSizes {
  std::size_t requested;
  std::size_t allocated;
};

// Returns the segment of a block. Requires that its device's mutex is held.
AddressRange segment_of(const Block& block);

// These take the lock themselves. Return nullopt if `ptr` is not a live allocation of `block`.
std::optional<AddressRange> base_allocation(const HeapState& state, const Block& block, const void* ptr);
std::optional<BlockSizes> sizes(const HeapState& state, const Block& block, const void* ptr);
// Takes the lock itself. Returns the context of a live allocation, or null.
Context context_of(HeapState& state, const Block& block, const void* ptr);
// Returns true if `ptr` is a live allocation without memory until restore_physical.
bool sleeps(const HeapState& state, const Block& block, const void* ptr);
// Says what is at `ptr`, for messages: "is free", "lies inside the allocation at 0x…", …; "" if it is not of this
// device.
std::string describe(const HeapState& state, const void* ptr);

CACHALOT_END
