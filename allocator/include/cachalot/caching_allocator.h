// A caching allocator of GPU memory that takes PyTorch's decisions, for one or several devices.
//
//   cachalot::CachingAllocator allocator(cachalot::cuda_devices());
//   void* p = allocator.allocate(1 << 20, /*device=*/0, stream);
//   allocator.deallocate(p);
//
// Memory is handed out for a stream: it may be used by work queued on that stream at once, and freed while such work
// is still queued. Use on any other stream must be announced with record_stream before the free.
//
// Which segment, which offset, what is split, merged, kept and returned: exactly as PyTorch 2.11's
// CUDACachingAllocator decides (allocator/README.md says how it is built and where it does better).
//
// Thread safety: every method may be called from any thread at any time. Observers, callbacks and context recorders
// run without any of the allocator's locks held and may call it; ChangeTrackers run under a lock and must not.
// Errors: OutOfMemory, InvalidArgument and CudaError (errors.h); after each, the state is as it was before the call
// (an out-of-memory request has by then given back the cache).
// Processes: an allocator belongs to the process that made it. In a forked child it refuses everything with an
// InvalidArgument, but for what gives back (deallocate, release_pool, end_allocate_to_pool) and its destructor, which do
// nothing (docs/process_life.md).
// Limits: a segment is smaller than 1 TiB and a device address has 48 bits at most; what a device gives beyond that goes
// back to it, with an InvalidArgument.
#pragma once

#include "cachalot/require_cpp17.h"

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "cachalot/change.h"
#include "cachalot/device.h"  // cuda_devices(), too
#include "cachalot/errors.h"
#include "cachalot/guard.h"
#include "cachalot/history.h"
#include "cachalot/kernels.h"
#include "cachalot/options.h"
#include "cachalot/out_of_memory.h"
#include "cachalot/pool_id.h"
#include "cachalot/private_pool.h"
#include "cachalot/shared_memory.h"
#include "cachalot/snapshot.h"
#include "cachalot/stats.h"
#include "cachalot/watcher.h"

namespace cachalot {

class DeviceAllocator;
class Guard;
class GuardLog;
class PageMap;
struct Block;

inline constexpr int kAllDevices = -1;

struct AllocateOptions {
  // Over the page heap: in one physical handle, for whoever exports it or registers it with a network card. Costs a new
  // handle where none that is idle has the room. (Over heap:segments every allocation lies in one piece.)
  bool contiguous = false;
};

class CachingAllocator {
 public:
  // `devices[i]->index() == i`. Asks the devices for nothing yet. `kernels` are for the guard: kernels_for of
  // cachalot::kernels is the fast one on a GPU.
  explicit CachingAllocator(std::vector<std::shared_ptr<Device>> devices, const Options& options = {},
                            KernelsFactory kernels = host_kernels);
  // Gives every segment back to its device, live allocations included.
  ~CachingAllocator();
  CachingAllocator(const CachingAllocator&) = delete;
  CachingAllocator& operator=(const CachingAllocator&) = delete;

  // Whether this process is a forked child of the allocator's.
  bool is_inherited() const;
  // 0 in a forked child.
  int device_count() const { return static_cast<int>(devices_.size()); }
  // What it asks for memory, for those who copy, wait or launch beside it. Throws InvalidArgument for an unknown device.
  const std::shared_ptr<Device>& device(int index = 0) const;
  // Expires when the allocator goes, before its memory does: for who holds its memory without owning it.
  std::weak_ptr<const void> life() const { return life_; }

  // At least `bytes` bytes, aligned to 512, for work on `stream`; nullptr for 0 bytes.
  // Throws OutOfMemory; InvalidArgument for an unknown device; OutOfMemory for 1 EiB or more.
  void* allocate(std::size_t bytes, int device = 0, Stream stream = nullptr);
  void* allocate(std::size_t bytes, int device, Stream stream, const AllocateOptions& options);
  // Frees what allocate returned; nullptr is allowed. Throws InvalidArgument for any other pointer and for a pointer
  // already freed.
  void deallocate(void* ptr);
  // The same, and checks that `bytes` and `device` are the allocation's. A `stream` other than the allocation's counts
  // as a use of the memory on it (record_stream).
  void deallocate(void* ptr, std::size_t bytes, int device, Stream stream);
  // For destructors: what deallocate throws a CudaError for is freed as soon as the device lets it, at the latest when
  // memory runs out or with empty_cache. Any other mistake ends the process. What handlers of the guard throw is dropped.
  void deallocate_when_possible(void* ptr) noexcept;
  // The memory is used by work queued on `stream`: after its free it is not reused before that work is done.
  // nullptr and the allocation's own stream are ignored.
  void record_stream(void* ptr, Stream stream);

  // Returns cached segments that have no live block to the device, after waiting for frees that wait for other
  // streams. A no-op during stream capture and, for the default pool, on a thread that is redirected into a pool.
  // With a pool id: only that pool's, and only once it was released by all its users.
  void empty_cache(int device = kAllDevices, PoolId pool = {});

  // Small blocks that threads keep for themselves (thread_cache) go back to where all may have them. empty_cache does so,
  // too, as does a request that would fail otherwise.
  void drain_thread_caches(int device = kAllDevices);

  // Bytes. Exact, whatever other threads are doing; but with thread_cache a peak that several threads made while they ran
  // side by side may be off, by at most 2 MiB for each of them.
  std::size_t memory_allocated(int device = 0) const;
  std::size_t memory_reserved(int device = 0) const;
  std::size_t max_memory_allocated(int device = 0) const;
  std::size_t max_memory_reserved(int device = 0) const;
  DeviceStats memory_stats(int device = 0) const;
  Fragmentation fragmentation(int device = 0) const;
  // Of one pool, or (default id) of everything; traces only if asked for.
  Snapshot snapshot(PoolId pool = {}, bool include_traces = true);
  void reset_peak_stats(int device = kAllDevices);
  void reset_accumulated_stats(int device = kAllDevices);
  // The largest free block in any pool, or the device's free memory if that is more and `starting_from_free_memory`
  // (PyTorch's cacheInfo). Bytes.
  std::size_t largest_available(int device = 0, bool starting_from_free_memory = true);

  struct Range {
    void* base = nullptr;
    std::size_t bytes = 0;
  };
  // The segment that holds the live allocation `ptr`.
  Range base_allocation(void* ptr) const;
  std::size_t requested_size(void* ptr) const;  // bytes asked for by the live allocation `ptr`
  std::size_t allocated_size(void* ptr) const;  // bytes of its block
  // Device of the live allocation `ptr`, or -1 when it is not one of ours.
  int device_of(const void* ptr) const;

  // Sharing with other processes. How many handles the live allocation `ptr` lies in (1 over heap:segments), and what
  // others need to open it. Descriptors stay the allocator's: they are open as long as `ptr` lives (and is awake: what
  // sleeps cannot be shared, and has other memory afterwards), and all that lies in the same handles can be reached
  // through them.
  std::size_t handle_count(const void* ptr) const;
  SharedMemory share(const void* ptr);
  // The same for an allocation in one handle; InvalidArgument for any other.
  SharedMemory share_contiguous(const void* ptr);
  // Opens what another process shared, on the device whose memory it is; its descriptors are this process's (sent over a
  // socket, or taken by pidfd_getfd) and stay the caller's. Returns where the segment or the first handle begins here; the
  // allocation is memory.offset behind. To be closed as often as it was opened: that waits for the device's work (not for that of peers); during
  // a capture it is put off until the next is closed. A CudaError of close_shared means the same.
  void* open_shared(const SharedMemory& memory, int device = 0);
  void close_shared(void* base);

  // From now on work of `device` may use the memory of `peer`, old and new (cudaDeviceEnablePeerAccess, which does not reach
  // the page heap by itself). A call that fails may have opened a part; it may be repeated.
  void enable_peer_access(int device, int peer);

  // Applies options (options.h) at run time; `heap`, `backend`, `guard` and `debug` cannot change any more. Atomic.
  void configure(std::string_view options);
  // The same for options that were parsed elsewhere; every one is taken. A memory fraction that is as it was leaves what
  // set_memory_fraction set.
  void configure(const Options& options);
  Options options() const;
  // Limits the bytes held from the device to floor(fraction x its total); fraction in [0, 1], 1 lifts the limit.
  void set_memory_fraction(double fraction, int device = 0);
  double memory_fraction(int device = 0) const;
  // Caching off: allocations go straight to the device and come back at once; statistics do not see them.
  void set_caching_enabled(bool enabled);
  bool caching_enabled() const;

  void add_out_of_memory_observer(OutOfMemoryObserver observer);
  void add_free_memory_callback(FreeMemoryCallback callback);
  void add_change_tracker(ChangeTracker tracker);
  // Told of every change on every device from now on, with the call stacks of allocations (watcher.h), until it is removed.
  // After remove_watcher it is not called any more; one that is not there is ignored.
  void add_watcher(std::shared_ptr<Watcher> watcher);
  void remove_watcher(const Watcher* watcher);
  void record_history(const HistoryOptions& history);
  bool history_enabled() const;

  // Private pools. A pool exists from its first create_or_retain_pool or begin_allocate_to_pool; each of these adds a
  // user, release_pool takes one away, and empty_cache gives back the memory of a pool without users.
  void create_or_retain_pool(int device, PoolId pool, std::shared_ptr<SegmentProvider> provider = nullptr);
  void begin_allocate_to_pool(int device, PoolId pool, StreamFilter filter, RedirectFor reason);
  void end_allocate_to_pool(int device, PoolId pool);
  void release_pool(int device, PoolId pool);
  int pool_use_count(int device, PoolId pool) const;
  void set_use_on_oom(int device, PoolId pool, bool use_on_oom);  // may serve others' requests as a last resort
  void set_no_split(int device, PoolId pool);                     // never splits a block
  // Whether the pool's allocations are exactly `live`.
  bool pool_has_exactly(int device, PoolId pool, const std::vector<void*>& live) const;
  PoolCheckpoint checkpoint_pool(int device, PoolId pool) const;
  RestoreResult restore_pool(int device, const PoolCheckpoint& checkpoint);

  // Sleep: physical memory goes back to the device and comes again at the same addresses. It needs heap:pages. A tag
  // names a private pool of each device; any other pool, of a graph or a MemPool, may sleep by its id as well.
  //
  // From begin_tagged to end_tagged, the calling thread's allocations belong to the tag. Regions nest, and several threads
  // may be in regions of one tag; each leaves its own. `tag` is not empty; a new one makes a tag.
  void begin_tagged(std::string_view tag, int device = kAllDevices);
  void end_tagged(std::string_view tag, int device = kAllDevices);
  // Waits for the device, then gives all memory of the tag back to it. Allocations stay live, may be freed, and count as
  // allocated, not as reserved; they must not be used, and nothing is allocated from the tag (InvalidArgument), until
  // restore_physical. What they hold is lost, or with `save` kept in pinned host memory; OutOfMemory when the host has
  // too little of that. Free memory comes back as well if the pool is in use (a graph may know its addresses), else it is
  // given up; its content is lost in any case. Of a tag that is asleep: nothing is left to do.
  void release_physical(std::string_view tag, bool save = false, int device = kAllDevices);
  // Memory again, at the same addresses, with what was saved. Cached memory of others is given back for it, and memory
  // limits hold; when there is too little, OutOfMemory, and the tag is asleep as before. Of a tag that is awake: nothing.
  void restore_physical(std::string_view tag, int device = kAllDevices);
  // InvalidArgument where no device has such a pool.
  // Devices come one after the other: those before the one that an OutOfMemory or CudaError names are done, and the call may
  // be repeated. All work on the memory must be done or on its own device: other GPUs are not waited for.
  void release_physical(PoolId pool, bool save = false, int device = kAllDevices);
  void restore_physical(PoolId pool, int device = kAllDevices);
  // None of these four while a stream of the device captures (InvalidArgument). After a CudaError from one of them some of
  // the memory may be asleep; what was saved is kept, and calling again goes on.

  // The guard (guard.h), for allocators made with guard:True or debug:True. What the heap tells, statistics and snapshots,
  // is told of its own blocks, which begin 512 bytes before the user's and end behind them; those in quarantine count as
  // allocated. A free waits for the streams that use the block: they must exist until then. (With debug:True,guard:False
  // none of that is so.)
  // Who hears of each report from now on; an empty handler: stderr, as from the start.
  void set_guard_handler(GuardHandler handler);
  std::uint64_t guard_reports() const;  // so far
  // Looks at all live blocks and all in quarantine now. Returns every report since the last call, also those of
  // frees and of mistakes; the newest 1,000. InvalidArgument without a guard, and while a graph is captured.
  std::vector<GuardReport> check_guard();
  std::size_t guard_quarantine_bytes(int device = 0) const;  // 0 without a guard

  // Walks everything; returns "" or the first broken rule by name. For tests: it is slow.
  std::string validate() const;
  // Host bytes of the allocator's own tables.
  std::size_t metadata_bytes() const;

 private:
  class Home;
  using DeviceAllocators = std::vector<std::unique_ptr<DeviceAllocator>>;

  DeviceAllocator& at(int device) const;
  [[noreturn]] void refuse_device(int device) const;
  void deallocate_on_no_device(int device) const;
  const DeviceAllocators& devices() const;  // for all but the fast paths
  static const PageMap& no_blocks();
  void require_own_process() const;
  void apply(const Options& options, bool sets_fraction);
  DeviceAllocator& owner_of(const Block& block) const;
  std::vector<DeviceAllocator*> selected(int device) const;
  std::vector<DeviceAllocator*> sleepers(PoolId pool, int device, const char* call) const;
  [[gnu::noinline]] void deallocate_outside_heaps(void* ptr);
  [[gnu::noinline]] void deallocate_uncached(void* ptr);
  [[gnu::noinline]] void* allocate_guarded(std::size_t bytes, int device, Stream stream, bool contiguous);
  [[gnu::noinline]] void deallocate_guarded(void* ptr, int device, std::size_t bytes, Stream stream);
  void deallocate_guarded(void* ptr);
  void set_up_guard(KernelsFactory kernels);
  void wake(const std::vector<DeviceAllocator*>& allocators, PoolId pool);
  bool is_guarded() const { return !guards_.empty(); }
  // Where the heap has what the user has at `ptr`: its block, to be checked by its device, and the address there.
  struct Found {
    Block* block;  // null: there is none
    const void* start;
  };
  Found find(const void* ptr) const;
  std::vector<Guard*> guards(int device) const;  // selected(device)'s; none without a guard
  enum class PointerUse : std::uint8_t { free, other };
  [[noreturn]] void throw_not_live(const void* ptr, PointerUse use) const;
  // Runs `action`; where it refuses a private pool that all its users have released, that is reported.
  template <typename Action>
  auto with_pool(int device, PoolId pool, Action action) const;
  // Runs `action`; what handlers of the guard throw for what it finds comes when it is done.
  template <typename Action>
  void tell_after(Action action);
  PoolId pool_of_tag(std::string_view tag) const;
  bool finish_late_frees();

  std::unique_ptr<Home> home_;
  std::shared_ptr<const void> life_ = std::make_shared<char>();
  std::unique_ptr<PageMap> page_map_;
  // What the fast paths see of devices_ and page_map_. With the guard on, and in a forked child, there is nothing, so that
  // every call leaves them for where that is asked, and nobody else pays for a look.
  const PageMap* open_map_;
  std::vector<DeviceAllocator*> open_devices_;
  mutable std::mutex options_mutex_;
  Options options_;
  std::atomic<bool> caching_enabled_{true};
  DeviceAllocators devices_;  // none in a forked child
  std::unique_ptr<GuardLog> guard_log_;
  std::vector<std::unique_ptr<Guard>> guards_;  // one a device with the guard on, else none
  std::mutex late_frees_mutex_;
  std::vector<void*> late_frees_;  // live: the device has refused to let them go
  bool has_had_late_frees_ = false;
  mutable std::mutex tags_mutex_;
  std::map<std::string, std::uint64_t, std::less<>> tags_;  // their numbers, from 1 on
};

}  // namespace cachalot
