// DeviceAllocator: one device's allocator, the only place where policy, blocks, segments, streams and time meet.
//
// The order of decisions is PyTorch's (native caching allocator, 2.11), step by step in allocate and obtain. Files:
//   device_allocator.cpp   malloc and free, the fast path
//   device_pages.cpp       the slow path over the page heap: streams, and where a request goes
//   device_page_calls.cpp  the same path's driver calls, and how pages go back
//   device_sharing.cpp     allocations in one handle, other processes, other GPUs
//   device_growth.cpp      the slow path over segments: grow, collect garbage, give back segments, synchronize
//   out_of_memory.cpp      who is told, and what the message says
//   private_pools.cpp      pools, redirection, checkpoints
//   device_streams.cpp     streams that come and go
//   cached_allocations.cpp small blocks through thread caches: what they ask of the heap, and what they tell it
//   sleeping_pools.cpp     pools whose memory goes and comes again at the same addresses
//   device_inspection.cpp  statistics, fragmentation, snapshot, validate
//
// Locks: mutex_ guards all state and is let go around driver calls and the user's callbacks. slow_mutex_, taken first,
// lets one thread at a time grow or give back memory, so that two threads in need do not both grow; the fast path of
// others goes on meanwhile. Threads use their caches without a lock (ThreadCaches). Out-of-memory observers and free-memory
// callbacks run with neither held.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/bytes.h"
#include "base/check.h"
#include "base/mutex.h"
#include "cachalot/change.h"
#include "cachalot/device.h"
#include "cachalot/history.h"
#include "cachalot/options.h"
#include "cachalot/out_of_memory.h"
#include "cachalot/private_pool.h"
#include "cachalot/shared_memory.h"
#include "cachalot/snapshot.h"
#include "cachalot/stats.h"
#include "caches/thread_caches.h"
#include "device/addresses.h"
#include "device/sharing.h"
#include "observe/counters.h"
#include "observe/history.h"
#include "pages/page_heap.h"
#include "pages/placement.h"
#include "policy/torch_policy.h"
#include "segments/segment_heap.h"
#include "streams/deferred_frees.h"

namespace cachalot {

// What a sleeping handle's memory held, in pinned host memory: its stretches, one after the other.
struct SavedBytes {
  void* host = nullptr;
  std::vector<PageHeap::Stretch> stretches;
};

// A pool beside the default one. Lives until it has neither users nor segments, and is awake.
struct PrivatePool {
  explicit PrivatePool(PoolId pool_id)
      : id(pool_id), small(PoolKind::small, pool_id, this), large(PoolKind::large, pool_id, this) {}
  PoolId id;
  int use_count = 1;
  std::size_t segments = 0;  // held from the device, those being asked for included
  bool may_split = true;
  std::shared_ptr<SegmentProvider> provider;  // null: the device
  BlockPool small;
  BlockPool large;
  std::string tag;                       // its name, if it is a tag's
  bool is_asleep = false;                // its handles are, or some: nothing is allocated from it
  std::map<HandleId, SavedBytes> saved;  // of handles that are asleep, or were when the device refused to go on
};

class DeviceAllocator {
 public:
  DeviceAllocator(std::shared_ptr<Device> device, PageMap& page_map, const Options& options);
  ~DeviceAllocator();
  DeviceAllocator(const DeviceAllocator&) = delete;
  DeviceAllocator& operator=(const DeviceAllocator&) = delete;

  // Contracts are those of CachingAllocator's methods of the same names.
  const std::shared_ptr<Device>& device() const { return device_; }
  int index() const { return index_; }
  CACHALOT_FAST_PATH void* allocate(std::size_t bytes, Stream stream);
  void* allocate_contiguous(std::size_t bytes, Stream stream);
  // `block` is what the page map says of `ptr`; false when `ptr` is not a live allocation of it: nothing was done.
  CACHALOT_FAST_PATH bool deallocate(Block& block, const void* ptr);
  // Throws InvalidArgument when `bytes` is not what was asked for.
  bool deallocate(Block& block, const void* ptr, std::size_t bytes, Stream stream);
  bool record_stream(Block& block, const void* ptr, Stream stream) {
    return record_stream(block, ptr, identify(stream));
  }
  bool record_stream(Block& block, const void* ptr, const KnownStream& stream);
  void stream_ends(Stream stream);
  // Which stream has the handle now. Throws InvalidArgument where none has.
  KnownStream identify(Stream stream) const { return cachalot::identify(*device_, stream, immortal_streams_); }
  // Frees what was allocated while caching was off; false when `ptr` was not.
  bool deallocate_uncached(const void* ptr);
  void empty_cache(PoolId pool);
  void drain_thread_caches();

  std::size_t memory_allocated();
  std::size_t memory_reserved() const;
  std::size_t max_memory_allocated();
  std::size_t max_memory_reserved() const;
  DeviceStats stats();
  Fragmentation fragmentation();
  // Appends this device's trace and its segments, and records that a snapshot was taken: the next one's trace shows it.
  void snapshot_into(Snapshot& snapshot, PoolId pool, bool include_traces);
  void reset_peak_stats();
  void reset_accumulated_stats();
  std::size_t largest_available(bool starting_from_free_memory);

  struct Segment {
    Address base;
    std::size_t bytes;
  };
  struct Sizes {
    std::size_t requested;
    std::size_t allocated;
  };
  // nullopt when `ptr` is not a live allocation of `block`.
  std::optional<Segment> base_allocation(const Block& block, const void* ptr) const;
  std::optional<Sizes> sizes(const Block& block, const void* ptr) const;
  std::optional<std::size_t> handle_count(const Block& block, const void* ptr) const;
  std::optional<SharedMemory> share(const Block& block, const void* ptr);
  // Where the segment or the first handle begins.
  Address open_shared(const SharedMemory& memory);
  bool close_shared(Address base);  // false: it is not open
  // Work of this device may use the malloc memory of `peer`; work of `peer` may use this device's memory of the page heap.
  void enable_access_to(int peer);
  void open_to(int peer);
  // What is at `ptr`, for messages: "is free", "lies inside the allocation at 0x…", …; "" when it is not this device's.
  std::string describe(const void* ptr) const;

  void apply(const Options& options);
  void set_memory_fraction(double fraction);
  static void require_fraction(double fraction);
  double memory_fraction() const;
  void set_caching_enabled(bool enabled);

  // What the guard asks. Called when a request is about to fail, without locks; true: something was freed.
  void set_last_resort(FreeMemoryCallback last_resort);
  bool is_capturing() const;
  bool is_uncached(const void* ptr) const;                 // a live allocation of while caching was off
  bool sleeps(const Block& block, const void* ptr) const;  // a live one, without memory until restore_physical

  void add_out_of_memory_observer(OutOfMemoryObserver observer);
  void add_free_memory_callback(FreeMemoryCallback callback);
  void add_change_tracker(ChangeTracker tracker);
  void add_watcher(std::shared_ptr<Watcher> watcher);
  void remove_watcher(const Watcher* watcher);
  bool is_watched() const { return watched_.load(std::memory_order_relaxed); }
  // What the guard says: watchers hear of its blocks, by its word, and no more of the heap's.
  void let_guard_tell();
  void tell_watchers(Change change, const CallStack& stack);
  void record_history(const HistoryOptions& history);
  bool history_enabled() const;

  void create_or_retain_pool(PoolId id, std::shared_ptr<SegmentProvider> provider);
  void begin_allocate_to_pool(PoolId id, StreamFilter filter, RedirectFor reason);
  void end_allocate_to_pool(PoolId id);
  void release_pool(PoolId id);
  int pool_use_count(PoolId id) const;
  void set_use_on_oom(PoolId id, bool use_on_oom);
  void set_no_split(PoolId id);
  bool pool_has_exactly(PoolId id, const std::vector<void*>& live) const;
  PoolCheckpoint checkpoint_pool(PoolId id) const;
  RestoreResult restore_pool(const PoolCheckpoint& checkpoint);

  void begin_tagged(PoolId id, std::string_view tag);
  // Nothing where the tag has no pool here. `tag` and `device` are left to the caller.
  std::optional<TagMemory> tag_memory(PoolId id) const;
  void end_tagged(PoolId id, std::string_view tag);
  // A tag's pool may have gone with its last block: it is there again.
  void create_tag(PoolId id, std::string_view tag);
  // Throws InvalidArgument in the name of `call`, unless the heap is of pages.
  void require_pages(const char* call) const;
  // False: there is no such pool.
  bool may_sleep(PoolId id, const char* call) const;
  bool release_physical(PoolId id, bool save);
  bool restore_physical(PoolId id);

  std::string validate();
  std::size_t metadata_bytes() const;

 private:
  // What a malloc asks for, once the policy has spoken. Passed by value, so that it stays in registers.
  struct Request {
    std::size_t bytes;        // asked for
    std::size_t rounded;      // the block wanted
    Arena* arena;             // pool and stream
    bool contiguous = false;  // of the page heap: in one handle
    BlockPool& pool() const { return arena->pool; }
    const KnownStream& stream() const { return arena->stream; }
  };
  struct Redirect {
    PrivatePool* pool;
    StreamFilter filter;
    RedirectFor reason;
  };
  // A segment on its way back to the device: no longer in the heap nor reserved, but still held.
  struct Departing {
    Address address;
    std::size_t bytes;
    Arena* arena;
    Context context;
  };
  // Rare modes: the fast path asks for all of them at once.
  enum RareMode : std::uint32_t {
    kRedirecting = 1,   // redirects_ is not empty
    kWaitingFrees = 2,  // frees wait for events or for the end of a capture
    kAging = 4,         // garbage collection is on
    kObserved = 8,      // someone looks at changes
    kBypassed = 16,     // caching is off
    kContexts = 32,     // blocks may hold the context of their allocation, from then on for good
    kCaching = 64,      // there are thread caches, from then on for good
  };
  // Modes in which every malloc and free must come to the heap.
  static constexpr std::uint32_t kNotThroughCaches = kRedirecting | kWaitingFrees | kObserved | kBypassed;
  // What the device did not take back: memory (0: only addresses), and where it may still be mapped.
  struct Orphan {
    MemoryHandle memory;
    std::size_t bytes;
    std::vector<Address> views;
  };
  // Memory whose last use comes before the stream's next work; or may come there by a wait for events that are recorded.
  enum class Whose { ordered, awaitable };
  class BackingCalls;
  // Holds slow_mutex_ for a stretch of a function that holds mutex_.
  class SlowSection;
  class PoolHold;
  class ArenaHold;

  BlockPool& small() { return default_pools_[0]; }
  BlockPool& large() { return default_pools_[1]; }
  const BlockPool& small() const { return default_pools_[0]; }
  const BlockPool& large() const { return default_pools_[1]; }
  PoolPair pools_of(const PrivatePool* owner) const {
    return owner != nullptr ? PoolPair{&owner->small, &owner->large} : PoolPair{&small(), &large()};
  }

  static constexpr std::size_t kFewArenas = 128;
  static constexpr std::size_t kNoLimit = std::numeric_limits<std::size_t>::max();
  static constexpr std::size_t kEverything = std::numeric_limits<std::size_t>::max();

  // malloc and free (device_allocator.cpp)
  [[gnu::noinline]] void* allocate_from_heap(std::size_t bytes, Stream stream);
  [[gnu::noinline]] bool deallocate_to_heap(Block& block, const void* ptr);
  bool deallocate_with_context(Block& block, const void* ptr);
  void* allocate(std::size_t bytes, Stream stream, const Context& context);
  void* allocate_with_context(std::size_t bytes, Stream stream);
  void prepare(Stream stream);
  Request make_request(std::size_t bytes, Stream stream);
  Block* find_free(Request request);
  Block* search(Request request) const;
  bool splits(const Block& block, Request request) const;
  void* hand_out(Block& block, std::size_t rounded, std::size_t bytes, bool split, const Context& context);
  void take_exactly(Block& block, std::size_t bytes);
  void observe_alloc(Block& block, const InactiveSplit& change, const Context& context);
  void* allocate_uncached(std::size_t bytes);
  [[noreturn]] void refuse(std::size_t bytes);
  static bool is_live(const Block& block, const void* ptr) {
    const auto address = as_address(ptr);
    return block.address == address &&
           ((block.size_and_flags & Block::kFlagBits) == Block::kAllocated || block.is_lent(address));
  }
  void free_block(Block& block, const Context& context);
  static bool is_known_as_own(const Block& block, Stream stream);
  void put_back_live(Block& block);
  void free_later(Block& block, const Context& context);
  void count_free_requested(Block& block, const Context& context);
  void start_waiting(Block& block);
  void finish_waiting(Block& block);
  void finish_free(Block& block, const Context& context);
  void finish_observed_free(Block& block, const Context& context);
  void forget_context(const Block& block);
  void queue_frees_deferred_in_capture();

  void update_aging();

  // streams that come and go (device_streams.cpp)
  [[gnu::noinline]] Arena& arena_of_request(BlockPool& pool, Stream handle);
  Arena& arena_of(BlockPool& pool, const KnownStream& stream);
  void note(const KnownStream& stream);
  void end_stream(const KnownStream& stream);
  bool has_arena(StreamKey stream) const;
  // These with slow_mutex_ held.
  Block* take_from_ended(Request request);
  bool has_many_arenas() const;
  void forget_streams_without_memory();
  std::set<const Arena*> arenas_with_memory() const;
  void forget_clocks_but(const std::set<StreamKey>& kept);

  // cached_allocations.cpp
  [[gnu::noinline]] void* allocate_through_cache(std::size_t bytes, Stream stream);
  void* allocate_for_cache(std::size_t bytes, Stream stream);
  void refill(StreamCache& cache, Request request);
  Block& take_for_cache(StreamCache& cache, Block& block, Request request);
  void put_back_cached(Block& block);
  [[gnu::noinline]] bool deallocate_through_cache(Block& block, const void* ptr);
  bool deallocate_through_cache(Block& block, const void* ptr, std::size_t bytes, Stream stream);
  void end_lease(Block& block);
  void leave_caches(Block& block);
  void gather(ThreadCache& cache);
  void come_to_heap();
  void gather_all();
  void gather_held();  // the same, under a Recall
  bool drain_caches();
  bool drain_caches_or_grow();
  void use_thread_caches(bool wanted);
  void open_or_close_caches();
  bool caches_are_open() const { return caches_open_.load(std::memory_order_acquire); }

  // slow path (device_growth.cpp); slow_mutex_ is held from obtain_from_device on, which takes it, as empty_cache does
  Block& obtain(Request request, const Context& context);
  Block* obtain_once(Request request, const Context& context);
  bool run_last_resort();
  Block* obtain_from_device(Request request, const Context& context);
  bool run_free_memory_callbacks();
  void collect_garbage();
  std::size_t garbage_limit() const;
  Block* grow(Request request, const Context& context);
  std::optional<Address> ask_for_segment(std::size_t bytes, Request request);
  Block& adopt(Address address, std::size_t bytes, Arena& arena);
  Block* borrow_from_pools(Request request);
  bool release_oversize_for(Request request);
  bool synchronize_frees(const PrivatePool* only);
  void release_default_pools();
  void release_unused_pools(PoolId id);
  static void append_free_segments(BlockPool& pool, std::vector<Block*>& blocks);
  void release(const std::vector<Block*>& blocks);
  void give_back(const Departing& departing);
  void return_to_heap(const Departing& departing);
  void count_released(const Departing& departing);
  void count_retry(PoolKind kind);
  void observe_memory(Change::Action action, Address address, std::size_t bytes, const Arena& arena,
                      const Context& context);

  // allocations in one handle (device_sharing.cpp)
  Block* find_in_arena(Request request);
  Block* find_contiguous(Request request, const Arena& arena, Whose whose) const;
  Block* find_contiguous(Request request, Whose whose) const;
  PageHeap::Stretch contiguous_part(const Block& block, Request request) const;
  Block* search_contiguous(Request request);
  Block* search_or_create_contiguous(Request request, const Context& context);
  Block* obtain_contiguous(Request request, const Context& context);

  // calls of the driver that are no request's, and may lack memory for its tables (device_sharing.cpp); slow_mutex_ is held
  void call_or_recover(const std::function<void()>& call, const char* purpose, std::size_t bytes);

  // the page heap (device_pages.cpp): questions for which mutex_ is enough
  void choose_heap(const Options& options);
  bool is_paged(const BlockPool& pool) const {
    return pages_ != nullptr && (pool.owner() == nullptr || !pool.owner()->provider);
  }
  static bool may_split(const BlockPool& pool) { return pool.owner() == nullptr || pool.owner()->may_split; }
  static bool is_asleep(const BlockPool& pool) { return pool.owner() != nullptr && pool.owner()->is_asleep; }
  Reach reach_into(const Arena& arena, const KnownStream& stream, Whose whose) const;
  bool may_take(const Block& block, const KnownStream& stream, Whose whose) const;
  Block* search_fragments(Request request);
  BlockPool& large_pool_beside(Request request);

  // slow path over the page heap (device_pages.cpp); slow_mutex_ is held, which obtain_from_pages takes
  StreamClock& clock_of(const KnownStream& stream);
  void end_epoch(StreamClock& clock);
  bool record_epoch(StreamClock& clock);
  bool captures(Stream stream);
  Event record_event(const KnownStream& stream);
  void refresh_clocks(Request request);
  void ask_events(StreamClock& clock);
  bool may_record(const StreamClock& clock, Request request) const;
  bool owns_idle_pages(StreamKey stream) const;
  bool event_is_done(Event event);
  void wait_for_stream(StreamClock& waiter, const StreamClock& other, std::uint32_t epoch);
  bool may_wait_for_others(Request request) const;
  bool wait_for_a_better(Request request, StreamClock& clock, const std::optional<BackingPlan>& plan,
                         PlacementRules rules);
  void drop_stale_views();
  void drop_done_views();
  void finish_all_work();
  Block* obtain_from_pages(Request request, const Context& context);
  void catch_up(Request request);
  void wait_and_give_back(Request request);
  Block* take_page(Request request);
  void return_whole_pages();
  Block* find_to_take_over(Request request, Whose whose) const;
  Block* take_over(Request request);
  std::size_t usual_handle_bytes() const;
  std::optional<BackingPlan> best_plan(Request request, Whose whose, PlacementRules rules = {});
  Block* bring_together_or_create(Request request, StreamClock& clock, const Context& context);
  Block* bring_together(Request request, StreamClock& clock, const Context& context);
  bool may_create(Request request);
  void reserve_range(Request request);
  void release_ranges(const PrivatePool& pool);

  // slow path over the page heap, its driver calls (device_page_calls.cpp); slow_mutex_ is held, but in the destructor
  // nullptr: no plan, or the device or the limit has no room for its new memory.
  Block* carry_out(const std::optional<BackingPlan>& plan, Request request, const Context& context);
  Block& settle(const BackingPlan& plan, const std::vector<PageHeap::Left>& left,
                const std::vector<MemoryHandle>& created, Request request, const Context& context);
  void remember_context(Block& block, const Context& context);
  void observe_plan(const BackingPlan& plan, const std::vector<PageHeap::Left>& left, const Arena& arena,
                    const Context& context);
  void forget_view(HandleId id, Address at);
  bool has_orphans(const PrivatePool& pool) const;
  void adopt_orphan(const Orphan& orphan);
  void block_orphan(const Orphan& orphan);
  void free_orphan(Orphan orphan);
  void free_orphans();
  void release_pages(PrivatePool* owner, std::size_t enough);
  void release_handle(HandleId id, PrivatePool* owner);
  void count_given_back(HandleId id);
  void collect_idle_pages();
  void give_back_pages() noexcept;
  void destroy_events() noexcept;

  // out_of_memory.cpp
  [[noreturn]] void throw_out_of_memory(Request request, const Context& context);
  std::string explain(Request request, std::size_t segment_bytes, const MemoryInfo& memory) const;
  std::string explain_use(Request request) const;
  std::string explain_held() const;
  std::string explain_sleep() const;
  std::string explain_free(Request request) const;

  // private_pools.cpp
  BlockPool& pool_for(PoolKind kind, Stream stream);
  const Redirect* redirect_of(Stream stream) const;
  bool capturing() const { return captures_ != 0; }
  bool thread_is_redirected() const;
  PrivatePool* find_pool(PoolId id) const;
  PrivatePool& existing_pool(PoolId id, const char* rule) const;
  PrivatePool& retain_pool(PoolId id);
  bool in_use(const PrivatePool& pool) const;
  std::vector<Block*> heads_of(const PrivatePool& pool) const;
  void join_kinds(PrivatePool& pool);
  void restore_segment(Block& head, const PoolCheckpoint::Segment& segment, RestoreResult& result);
  void require_restorable(const PrivatePool& pool, const PoolCheckpoint& checkpoint) const;

  // sleeping_pools.cpp: questions for which mutex_ is enough
  std::string name_of(const PrivatePool& pool) const;
  void require_awake(const PrivatePool* pool, const char* done = "allocated") const;
  PrivatePool* find_sleeper(PoolId id, const char* call) const;
  std::vector<HandleId> handles_of(const PrivatePool& pool, bool asleep) const;
  std::size_t bytes_of(const std::vector<HandleId>& handles) const;

  // sleeping_pools.cpp; slow_mutex_ is held, which release_physical and try_to_wake take
  void stay_awake(PrivatePool& pool, const std::vector<HandleId>& saved);
  void save_bytes(PrivatePool& pool, const std::vector<HandleId>& handles);
  void* pinned_memory(std::size_t bytes, const PrivatePool& pool);
  void put_to_sleep(const std::vector<HandleId>& handles);
  MemoryHandle take_memory(HandleId id) noexcept;
  bool try_to_wake(PrivatePool& pool);
  bool wake_once(const PrivatePool& pool);
  void forget_idle_sleepers(PrivatePool& pool);
  void recover_without_request();
  bool create_again(const std::vector<HandleId>& handles, std::vector<MemoryHandle>& memory);
  void discard(const std::vector<HandleId>& handles, const std::vector<MemoryHandle>& memory, std::size_t mapped);
  void wake(const PrivatePool& pool, const std::vector<HandleId>& sleepers, const std::vector<MemoryHandle>& memory);
  void map_again(HandleId id, MemoryHandle memory);
  void set_access(const std::vector<HandleId>& handles);
  void bring_saved_bytes(const PrivatePool& pool);
  void forget_saved(PrivatePool& pool, HandleId id);
  void free_host_memory();

  // observing (device_inspection.cpp)
  void set_observed();
  void observe(Change change);
  Change change_of(Change::Action action, const Block& block, const Context& context) const;
  void set_mode(RareMode mode, bool on) {
    rare_ = on ? rare_ | mode : rare_ & ~static_cast<std::uint32_t>(mode);
    if ((mode & kNotThroughCaches) != 0) open_or_close_caches();
  }
  Context gather_context(HistoryOptions::Contexts level) const;
  template <typename Visit>
  void for_each_pool(Visit&& visit) const {  // the default ones and the private ones
    visit(small());
    visit(large());
    for (const auto& [id, pool] : pools_) {
      visit(pool->small);
      visit(pool->large);
    }
  }
  SegmentSnapshot picture(const Block& head) const;
  std::string validate_bins() const;
  std::string validate_sleep() const;
  std::string validate_counters() const;
  std::string validate_caches() const;

  // Whether small blocks go through thread caches now; read without the lock.
  std::atomic<bool> caches_open_{false};
  bool caches_wanted_ = false;
  std::unique_ptr<ThreadCaches> caches_;  // made when first wanted
  std::size_t device_bytes_ = 0;          // known since then
  bool small_is_used_up_ = false;         // over the page heap, when it was last asked

  // What every malloc touches comes first.
  mutable Mutex mutex_;
  std::uint32_t rare_ = 0;
  bool rounds_by_divisions_ = false;
  bool splits_everything_ = false;  // the page heap is in use
  Options options_;
  BlockPool default_pools_[2] = {{PoolKind::small, {}, nullptr}, {PoolKind::large, {}, nullptr}};
  Counters counters_;
  SegmentHeap heap_;

  const std::shared_ptr<Device> device_;
  const int index_;
  const bool immortal_streams_;
  mutable std::mutex slow_mutex_;
  DeferredFrees frees_;
  std::vector<Block*> frees_deferred_in_capture_;

  double fraction_ = 1;
  std::size_t limit_ = kNoLimit;     // of held_bytes_
  std::size_t held_bytes_ = 0;       // from the device: reserved, being asked for, or being given back
  std::size_t asking_bytes_ = 0;     // of held_bytes_, those being asked for
  std::size_t departing_bytes_ = 0;  // of held_bytes_, those being given back

  // The page heap, if it is in use; what belongs to it changes only while slow_mutex_ is held, too.
  std::unique_ptr<PageHeap> pages_;
  std::unique_ptr<Placement> placement_;
  std::unordered_map<StreamKey, std::unique_ptr<StreamClock>> clocks_;
  std::unordered_map<Stream, StreamKey> mortal_streams_;  // those that are not immortal: the last that had each handle
  std::size_t most_arenas_ = kFewArenas;  // of the default pools: then streams without memory are forgotten
  std::vector<Event> spare_events_;
  std::vector<Orphan> orphans_;
  std::size_t orphan_bytes_ = 0;          // of held_bytes_
  std::size_t moving_bytes_ = 0;          // reserved, and in no block just now: on the way from one hole to another
  std::vector<void*> spare_host_memory_;  // pinned, and to be given back

  // What others may use, and what of theirs is open here: guarded by slow_mutex_ alone.
  std::vector<int> peers_;  // devices to which the page heap's mappings are open
  ExportedHandles exported_;
  ImportedMemory imported_;

  std::map<PoolId, std::unique_ptr<PrivatePool>> pools_;
  std::vector<Redirect> redirects_;
  int captures_ = 0;                // redirects for a capture
  std::vector<PoolId> use_on_oom_;  // in the order they were set

  History history_;
  // What makes allocations leave the fast path: contexts, or a watcher's stacks.
  std::atomic<HistoryOptions::Contexts> contexts_{HistoryOptions::Contexts::never};
  HistoryOptions::Contexts recorded_contexts_ =
      HistoryOptions::Contexts::never;  // for the recorder; contexts_ may be more
  std::atomic<bool> watched_{false};
  std::atomic<bool> takes_stacks_{false};  // it is the heap that tells the watchers
  ContextRecorder recorder_;
  std::vector<OutOfMemoryObserver> out_of_memory_observers_;
  std::vector<FreeMemoryCallback> free_memory_callbacks_;
  FreeMemoryCallback last_resort_;  // empty: none
  std::set<Address> uncached_;      // allocated while caching was off
};

// An arena that is being asked for memory stays, though it may have none yet.
class DeviceAllocator::ArenaHold {
 public:
  explicit ArenaHold(Arena& arena) : arena_(arena) { ++arena_.requests; }
  ~ArenaHold() { --arena_.requests; }
  ArenaHold(const ArenaHold&) = delete;
  ArenaHold& operator=(const ArenaHold&) = delete;

 private:
  Arena& arena_;
};

class DeviceAllocator::SlowSection {
 public:
  explicit SlowSection(const DeviceAllocator& allocator) : allocator_(allocator) {
    const Unlocked unlocked(allocator_.mutex_);  // slow_mutex_ comes first
    allocator_.slow_mutex_.lock();
  }
  ~SlowSection() { allocator_.slow_mutex_.unlock(); }
  SlowSection(const SlowSection&) = delete;
  SlowSection& operator=(const SlowSection&) = delete;

 private:
  const DeviceAllocator& allocator_;
};

// A private pool that is being asked for memory lives on, though it may have no segment yet and its last user may go
// while the lock is let go.
class DeviceAllocator::PoolHold {
 public:
  explicit PoolHold(PrivatePool* pool) : pool_(pool) {
    if (pool_ != nullptr) ++pool_->segments;
  }
  ~PoolHold() {
    if (pool_ != nullptr) --pool_->segments;
  }
  PoolHold(const PoolHold&) = delete;
  PoolHold& operator=(const PoolHold&) = delete;

 private:
  PrivatePool* pool_;
};

// --- the parts of the fast path that other paths repeat ---------------------------------------------------------------

CACHALOT_FAST_PATH DeviceAllocator::Request DeviceAllocator::make_request(std::size_t bytes, Stream stream) {
  const std::size_t rounded = rounds_by_divisions_ ? round_power2_divisions(bytes, options_) : round_to_block(bytes);
  BlockPool* pool = &default_pools_[static_cast<std::size_t>(pool_kind(rounded))];
  if ((rare_ & kRedirecting) != 0) [[unlikely]]
    pool = &pool_for(pool->kind(), stream);
  Arena* arena = pool->last();
  if (!pool->last_is_of(stream)) [[unlikely]]
    arena = &arena_of_request(*pool, stream);
  return {.bytes = bytes, .rounded = rounded, .arena = arena};
}

CACHALOT_FAST_PATH bool DeviceAllocator::splits(const Block& block, Request request) const {
  const BlockPool& pool = block.arena->pool;
  // The page heap splits large blocks as small ones. No branch: see should_split.
  const auto rule = static_cast<PoolKind>(static_cast<unsigned>(pool.kind()) & unsigned{!splits_everything_});
  return may_split(pool) && should_split(rule, block.size(), request.rounded, options_);
}

CACHALOT_FAST_PATH void* DeviceAllocator::hand_out(Block& block, std::size_t rounded, std::size_t bytes, bool split,
                                                   const Context& context) {
  const PoolKind kind = block.arena->pool.kind();
  const InactiveSplit change = heap_.take(block, rounded, bytes, split);
  const std::size_t size = block.size();
  counters_.allocated(kind, as_signed(size), as_signed(bytes));
  counters_.inactive_split(kind, change.blocks, change.bytes);
  if (is_oversize(size, options_)) [[unlikely]]
    counters_.oversize_allocation(1);
  if ((rare_ & kObserved) != 0) [[unlikely]]
    observe_alloc(block, change, context);
  return as_pointer(block.address);
}

// Everything but the cache's usual way is a function of its own: the usual way then needs no frame.
CACHALOT_FAST_PATH void* DeviceAllocator::allocate(std::size_t bytes, Stream stream) {
  if (caches_are_open() && bytes - 1 < SizeClass::kLargestBytes) {
    if (void* ptr = caches_->try_allocate(bytes, StreamKey::of_handle(stream))) [[likely]]
      return ptr;
    return allocate_through_cache(bytes, stream);
  }
  return allocate_from_heap(bytes, stream);
}

CACHALOT_FAST_PATH bool DeviceAllocator::deallocate(Block& block, const void* ptr) {
  if (caches_are_open()) return caches_->try_deallocate(block, ptr) || deallocate_through_cache(block, ptr);
  return deallocate_to_heap(block, ptr);
}

CACHALOT_FAST_PATH Block* DeviceAllocator::search(Request request) const {
  Block* block = request.arena->bins.best_fit(request.rounded);
  return block != nullptr && may_use(block->size(), request.rounded, options_) ? block : nullptr;
}

CACHALOT_FAST_PATH Block* DeviceAllocator::find_free(Request request) {
  if ((rare_ & kAging) != 0) [[unlikely]]
    ++request.pool().clock;
  return search(request);
}

}  // namespace cachalot
