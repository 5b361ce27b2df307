/// @file
/// The caching allocator of GPU memory.
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

/// Names all devices of an allocator where a function takes the index of one.
inline constexpr int kAllDevices = -1;

/// AllocateOptions say how an allocation may be asked for.
struct AllocateOptions {
  /// True: the allocation lies in one physical handle, to be exported or registered with a network
  /// card. Over heap:pages this costs a new handle if no idle handle has the room. Over
  /// heap:segments every allocation lies in one piece.
  bool contiguous = false;
};

/// A CachingAllocator allocates memory of one or several devices and caches what is freed.
///
///     cachalot::CachingAllocator allocator(cachalot::cuda_devices());
///     void* p = allocator.allocate(1 << 20, 0, stream);
///     kernel<<<grid, block, 0, stream>>>(p);
///     allocator.deallocate(p);  // at once: the next use on the same stream comes after the kernel
///
/// Streams: memory is allocated for a stream. Work queued on that stream may use it at once, and it
/// may be freed while such work is still queued. Use on another stream must be declared with
/// record_stream before the free.
///
/// Decisions: segments, offsets, splits, merges and what is kept are those of PyTorch 2.11's
/// CUDACachingAllocator, decision for decision, over heap:segments. allocator/README.md describes
/// the exceptions.
///
/// Thread safety: every method may be called from any thread at any time. Out-of-memory observers,
/// free-memory callbacks, context recorders and guard handlers run with none of the allocator's
/// locks held and may call it. ChangeTrackers, Watchers and HistoryOptions::annotate run under a
/// lock and must not call it.
///
/// Errors: OutOfMemory, InvalidArgument and CudaError, and those of the program's own functions
/// (errors.h). After each, the state is as before the call; a request that ran out of memory has by
/// then given back the cache.
///
/// Devices: functions that take `device` throw InvalidArgument for an index without a device. Those
/// whose default is kAllDevices take one device or all.
///
/// Processes: an allocator belongs to the process that made it. In a forked child the functions
/// that give back (deallocate, release_pool, end_allocate_to_pool) and the destructor do nothing,
/// and every other use of the allocator throws InvalidArgument (docs/process_life.md).
///
/// Limits: a segment is smaller than 1 TiB and a device address has at most 48 bits. Memory beyond
/// these limits goes back to the device, and the request throws InvalidArgument.
class CachingAllocator {
 public:
  /// Makes an allocator of these devices, which it asks for no memory yet. `kernels` makes the
  /// kernels of the guard; kernels_for of cachalot::kernels is the fast choice on a GPU.
  /// Throws InvalidArgument unless devices[i]->index() == i.
  explicit CachingAllocator(std::vector<std::shared_ptr<Device>> devices,
                            const Options& options = {},
                            const KernelsFactory& kernels = host_kernels);
  /// Gives every segment back to its device, those with live allocations included.
  ~CachingAllocator();
  CachingAllocator(const CachingAllocator&) = delete;
  CachingAllocator& operator=(const CachingAllocator&) = delete;

  /// Returns true in a forked child of the process that made the allocator.
  bool is_inherited() const;
  /// Returns the number of devices; 0 in a forked child.
  int device_count() const { return static_cast<int>(devices_.size()); }
  /// Returns the device that the allocator allocates from. Use it to copy, wait or launch.
  const std::shared_ptr<Device>& device(int index = 0) const;
  /// Returns a pointer that expires when the allocator is destroyed, before its memory is released.
  /// For holders of its memory that do not own the allocator.
  std::weak_ptr<const void> life() const { return life_; }

  /// @name Malloc and free
  /// @{

  /// Returns at least `bytes` bytes, aligned to 512, for work on `stream`; nullptr for 0 bytes.
  /// Throws OutOfMemory if there is not enough memory, and for 1 EiB or more (PyTorch's limit).
  /// Blocks: if memory runs short, until other streams are done with freed memory, and while the
  /// device takes memory back.
  void* allocate(std::size_t bytes, int device = 0, Stream stream = nullptr);
  /// Returns memory as asked for by `options`; otherwise as the function above.
  void* allocate(std::size_t bytes, int device, Stream stream, const AllocateOptions& options);
  /// Frees what allocate returned. nullptr is ignored.
  /// Throws InvalidArgument for a pointer that is not a live allocation, such as one already freed.
  void deallocate(void* ptr);
  /// Frees what allocate returned, and checks that `bytes` and `device` are those of the
  /// allocation. A `stream` other than the allocation's counts as a use on that stream
  /// (record_stream).
  /// Throws InvalidArgument as the function above, and if `bytes` or `device` differ.
  void deallocate(void* ptr, std::size_t bytes, int device, Stream stream);
  /// Frees what allocate returned, for destructors. If the device refuses the free (CudaError), it
  /// is retried later: at the latest when memory runs out, or in empty_cache. An exception of a
  /// guard handler is dropped. Any other mistake ends the process.
  void deallocate_when_possible(void* ptr) noexcept;
  /// Declares that work queued on `stream` uses the live allocation `ptr`. After its free the
  /// memory is not reused before that work is done. A null `ptr` and the allocation's own stream
  /// are ignored; nullptr is the legacy default stream. `stream` may belong to another device. It
  /// must be alive at the free, or have ended by stream_ends. If CUDA reports that it was
  /// destroyed, or its handle is another stream's, the free waits for all work on the allocation's
  /// device.
  /// Throws InvalidArgument for a pointer that is not a live allocation.
  void record_stream(void* ptr, Stream stream);

  /// Declares that no more work will be queued on `stream`, which is about to be destroyed
  /// (cudaStreamDestroy). Call it before every destruction of a stream that memory was allocated
  /// for or recorded on, and in each thread that ends after it used cudaStreamPerThread. The memory
  /// of the stream then serves other streams as soon as the work queued so far is done; live
  /// allocations stay valid and may be freed later. Without the call, the memory is reused by
  /// other streams after the next wait for the device, and never by a stream with the same handle
  /// before. The call does nothing for streams that the allocator does not know, for the
  /// legacy default stream, and with the option immortal_streams.
  /// Blocks: with the guard, until the work queued so far is done.
  /// Throws InvalidArgument if the stream was destroyed already, and if it captures a graph.
  void stream_ends(Stream stream);

  /// Gives cached segments without a live block back to the device; those of a private pool only
  /// once all its users have released it. With a pool id, only segments of that private pool go
  /// back. Does nothing while a stream captures a graph. On a thread that is redirected into a pool
  /// it leaves the default pool alone (PyTorch's rule).
  /// Blocks: until other streams are done with freed memory.
  void empty_cache(int device = kAllDevices, PoolId pool = {});
  /// Returns every thread's cached blocks to the shared heap. empty_cache and a request that would
  /// fail otherwise do so, too.
  void drain_thread_caches(int device = kAllDevices);
  /// @}

  /// @name Figures
  /// All are in bytes and exact at every moment. With thread_cache the peaks may be off, by at most
  /// 2 MiB for each of several threads that allocated concurrently.
  /// @{

  /// Returns the bytes of allocated blocks; requests are rounded up to blocks.
  std::size_t memory_allocated(int device = 0) const;
  /// Returns the bytes held from the device.
  std::size_t memory_reserved(int device = 0) const;
  /// Returns the largest memory_allocated since the start or reset_peak_stats.
  std::size_t max_memory_allocated(int device = 0) const;
  /// Returns the largest memory_reserved since the start or reset_peak_stats.
  std::size_t max_memory_reserved(int device = 0) const;
  /// Returns PyTorch's statistics.
  DeviceStats memory_stats(int device = 0) const;
  /// Returns how well memory is used now.
  Fragmentation fragmentation(int device = 0) const;
  /// Returns all segments and blocks of one private pool, or with the default id of everything. The
  /// traces of the history come with it if `include_traces`.
  Snapshot snapshot(PoolId pool = {}, bool include_traces = true);
  /// Starts every peak again from the current value.
  void reset_peak_stats(int device = kAllDevices);
  /// Starts every sum (Stat::allocated, Stat::freed and the num_ counts) again from 0.
  void reset_accumulated_stats(int device = kAllDevices);
  /// Returns the size of the largest free block in any pool; if `starting_from_free_memory`, at
  /// least the device's free memory (PyTorch's cacheInfo).
  std::size_t largest_available(int device = 0, bool starting_from_free_memory = true);
  /// @}

  /// @name One allocation
  /// Each function but device_of throws InvalidArgument for a pointer that is not a live
  /// allocation.
  /// @{

  /// A Range is the range [base, base + bytes).
  struct Range {
    void* base = nullptr;   ///< of the first byte
    std::size_t bytes = 0;  ///< length
  };
  /// Returns the segment that holds the live allocation `ptr`.
  Range base_allocation(void* ptr) const;
  /// Returns the bytes that the live allocation `ptr` was asked for with.
  std::size_t requested_size(void* ptr) const;
  /// Returns the bytes of the block of the live allocation `ptr`.
  std::size_t allocated_size(void* ptr) const;
  /// Returns the device of the live allocation `ptr`, or -1 if it is not an allocation of this
  /// allocator.
  int device_of(const void* ptr) const;
  /// @}

  /// @name Other processes and other GPUs
  /// @{

  /// Returns the number of physical handles that the live allocation `ptr` lies in; 1 over
  /// heap:segments.
  std::size_t handle_count(const void* ptr) const;
  /// Returns what other processes need to open the live allocation `ptr`. Its descriptors stay the
  /// allocator's and are open as long as `ptr` lives. All memory of the same handles or segment can
  /// be reached through them.
  /// Throws InvalidArgument if the memory is asleep. What was shared before release_physical does
  /// not show the memory that restore_physical brings.
  SharedMemory share(const void* ptr);
  /// Returns what share returns, for an allocation in one handle.
  /// Throws InvalidArgument also for an allocation in several handles.
  SharedMemory share_contiguous(const void* ptr);
  /// Opens memory that another process shared, on the device whose memory it is. Returns the
  /// address in this process where the segment or the first handle begins; the allocation is
  /// memory.offset behind. Descriptors in `memory` must be of this process (sent over a socket, or
  /// taken by pidfd_getfd) and stay the caller's.
  void* open_shared(const SharedMemory& memory, int device = 0);
  /// Closes what open_shared returned. Each open_shared needs one close_shared. While a graph is
  /// captured, and after a CudaError of this function, the memory stays mapped until the next
  /// close_shared.
  /// Throws InvalidArgument if `base` is not open.
  /// Blocks: until this device's work is done; work of its peers is not waited for.
  void close_shared(void* base);

  /// Allows work of `device` to use memory of `peer`, allocated before or later:
  /// cudaDeviceEnablePeerAccess, and for heap:pages access to each mapping.
  /// Throws InvalidArgument if both are one device. A call that fails may have opened a part and
  /// may be repeated.
  void enable_peer_access(int device, int peer);
  /// @}

  /// @name Options
  /// @{

  /// Applies options in their text form (options.h). `heap`, `guard` and `debug` cannot
  /// change after the allocator is made.
  /// Throws InvalidArgument, which names key, value and rule, and then applies nothing.
  void configure(std::string_view options);
  /// Replaces all options. If per_process_memory_fraction is unchanged, a fraction set by
  /// set_memory_fraction is kept. Throws as the function above.
  void configure(const Options& options);
  /// Returns the options.
  Options options() const;
  /// Limits the bytes held from the device to floor(fraction x total memory). 1 lifts the limit.
  /// Memory that is held already stays.
  /// Throws InvalidArgument unless `fraction` is in [0, 1].
  void set_memory_fraction(double fraction, int device = 0);
  /// Returns the fraction; 1 without a limit.
  double memory_fraction(int device = 0) const;
  /// Turns caching on or off. While it is off, allocations come from the device and go back to it
  /// at once, and the statistics do not contain them.
  void set_caching_enabled(bool enabled);
  /// Returns true if caching is on, which is the default.
  bool caching_enabled() const;
  /// @}

  /// @name Observers
  /// Those of add_out_of_memory_observer, add_free_memory_callback and add_change_tracker stay
  /// until the allocator is destroyed.
  /// @{

  /// Adds an observer of requests that fail. Throws InvalidArgument for an empty function.
  void add_out_of_memory_observer(const OutOfMemoryObserver& observer);
  /// Adds a callback that frees memory when it is needed. Throws InvalidArgument for an empty
  /// function.
  void add_free_memory_callback(const FreeMemoryCallback& callback);
  /// Adds a tracker of changes. Throws InvalidArgument for an empty function.
  void add_change_tracker(const ChangeTracker& tracker);
  /// Adds an observer of every change on every device, with the call stacks of allocations, until
  /// it is removed. Throws InvalidArgument for a null pointer.
  void add_watcher(const std::shared_ptr<Watcher>& watcher);
  /// Removes a watcher; it is not called after this returns. An unknown watcher is ignored.
  void remove_watcher(const Watcher* watcher);
  /// Starts, changes or stops the recording of changes, as `history` says.
  /// Throws InvalidArgument for an enabled history with max_entries 0, or with contexts and no
  /// recorder.
  void record_history(const HistoryOptions& history);
  /// Returns true if changes are recorded on any device.
  bool history_enabled() const;
  /// @}

  /// @name Private pools
  /// A pool exists from its first create_or_retain_pool or begin_allocate_to_pool. Each of these
  /// adds a user and each release_pool removes one. empty_cache gives back the memory of a pool
  /// without users. Functions that need an existing pool throw InvalidArgument for an unknown one.
  /// The default id (0, 0) names no private pool.
  /// @{

  /// Makes the pool if it does not exist, and adds a user. `provider` supplies the segments of a
  /// new pool; null: the device does.
  /// Throws InvalidArgument for the default id, and for another provider than an existing pool has.
  void create_or_retain_pool(int device, PoolId pool,
                             std::shared_ptr<SegmentProvider> provider = nullptr);
  /// Redirects allocations for the streams that `filter` accepts into the pool, until
  /// end_allocate_to_pool, and adds a user. The latest redirection that accepts a stream counts.
  /// `filter` runs under the device's lock and must not call the allocator.
  /// Throws InvalidArgument if allocations are redirected into this pool already.
  void begin_allocate_to_pool(int device, PoolId pool, StreamFilter filter, RedirectFor reason);
  /// Ends the redirection into the pool; its user stays. Throws InvalidArgument if there is none.
  void end_allocate_to_pool(int device, PoolId pool);
  /// Removes a user. Throws InvalidArgument if the pool has none.
  void release_pool(int device, PoolId pool);
  /// Returns the number of users; 0 for an unknown pool.
  int pool_use_count(int device, PoolId pool) const;
  /// Allows or forbids that free blocks of the pool serve requests of the default pool as a last
  /// resort.
  void set_use_on_oom(int device, PoolId pool, bool use_on_oom);
  /// Makes the pool hand out blocks whole from now on: it splits none.
  void set_no_split(int device, PoolId pool);
  /// Returns true if the pool's live allocations are exactly `live`.
  bool pool_has_exactly(int device, PoolId pool, const std::vector<void*>& live) const;
  /// Returns the pool's blocks as they are now.
  /// Throws InvalidArgument if the pool has no users, or a freed block still waits for other
  /// streams.
  PoolCheckpoint checkpoint_pool(int device, PoolId pool) const;
  /// Returns the pool to a checkpoint: ends all live allocations of the pool and makes those of the
  /// checkpoint.
  /// Throws InvalidArgument if the pool is asleep, if a block was recorded on another stream or
  /// waits for one, and for a checkpoint that does not fit the pool's segments. Nothing has then
  /// changed.
  RestoreResult restore_pool(int device, const PoolCheckpoint& checkpoint);
  /// @}

  /// @name Sleep
  /// @{

  /// Starts a region: until end_tagged, allocations of the calling thread belong to the tag.
  /// Regions nest, and several threads may be in regions of one tag. A tag names a private pool of
  /// each device.
  /// Throws InvalidArgument for an empty tag.
  void begin_tagged(std::string_view tag, int device = kAllDevices);
  /// Ends the calling thread's innermost region of the tag.
  /// Throws InvalidArgument if the thread is in no region of the tag.
  void end_tagged(std::string_view tag, int device = kAllDevices);

  /// Puts the tag's memory to sleep: gives it back to the device until restore_physical, which
  /// brings memory to the same addresses. Needs heap:pages. Does nothing if the tag is asleep.
  ///
  /// Allocations stay live and may be freed. They count as allocated, not as reserved. Until
  /// restore_physical they must not be used, and an allocation from the tag throws InvalidArgument.
  /// Their content is lost, or with `save` kept in pinned host memory and restored. Free memory
  /// loses its content; it comes back if the pool is in use, since a graph may know its addresses.
  ///
  /// Devices follow one after the other: if one throws, those before it are done, and the call may
  /// be repeated. After a CudaError a part of the memory may be asleep; what was saved is kept, and
  /// a further call goes on.
  ///
  /// Requires: work on the memory is done, or is on its own device; other GPUs are not waited for.
  /// Throws InvalidArgument for an unknown tag, another heap, and while a stream of the device
  /// captures.
  /// Throws OutOfMemory if the host has too little pinned memory to save to; that device's memory
  /// is then as before.
  /// Blocks: until the device's work is done.
  void release_physical(std::string_view tag, bool save = false, int device = kAllDevices);
  /// Wakes the tag: brings memory, and what was saved, to the same addresses. Does nothing if the
  /// tag is awake. Gives back cached memory of others to make room; memory limits hold.
  /// Throws OutOfMemory if there is too little memory; the device's memory is then asleep as
  /// before, except for parts that the device did not take back. Otherwise as release_physical.
  void restore_physical(std::string_view tag, int device = kAllDevices);
  /// Puts a private pool to sleep, such as a CUDA graph's or a MemPool; otherwise as the function
  /// of a tag.
  /// Throws InvalidArgument also if no device has the pool, and for a pool with a SegmentProvider.
  void release_physical(PoolId pool, bool save = false, int device = kAllDevices);
  /// Wakes a private pool; otherwise as the function of a tag.
  /// Throws InvalidArgument also if no device has the pool.
  void restore_physical(PoolId pool, int device = kAllDevices);
  /// Returns the memory of each tag on each device, sorted by tag and device, without the devices
  /// on which a tag holds nothing and is awake.
  /// Throws InvalidArgument in a forked child.
  std::vector<TagMemory> tags() const;
  /// @}

  /// @name The guard (guard.h)
  /// It exists in allocators made with guard:True or debug:True. With the guard on, statistics and
  /// snapshots describe the heap's own blocks, which start 512 bytes before the user's and end
  /// behind them; blocks in quarantine count as allocated. A free waits for the streams that use
  /// the block, which must exist until then. With debug:True,guard:False none of this holds.
  /// @{

  /// Sets the handler called for each report. Empty (the default): print to stderr. Does nothing
  /// without a guard.
  void set_guard_handler(GuardHandler handler);
  /// Returns the number of reports so far; 0 without a guard.
  std::uint64_t guard_reports() const;
  /// Verifies all live blocks and all blocks in quarantine now. Returns every report since the last
  /// call, those of frees and of mistakes included; at most the newest 1,000.
  /// Throws InvalidArgument without a guard, and while a graph is captured.
  /// Blocks: until the streams that use the blocks are done.
  std::vector<GuardReport> check_guard();
  /// Returns the bytes in quarantine; 0 without a guard.
  std::size_t guard_quarantine_bytes(int device = 0) const;
  /// @}

  /// @name Soundness
  /// @{

  /// Walks all tables. Returns "" or the first broken invariant. For tests: it is slow.
  std::string validate() const;
  /// Returns the host bytes of the allocator's own tables.
  std::size_t metadata_bytes() const;
  /// @}

 private:
  class ForkGuard;
  using DeviceAllocators = std::vector<std::unique_ptr<DeviceAllocator>>;

  DeviceAllocator& at(int device) const;
  [[noreturn]] void refuse_device(int device) const;
  void deallocate_on_no_device(int device) const;
  // Returns devices_, for everything but the fast paths; throws in a forked child.
  const DeviceAllocators& devices() const;
  static const PageMap& no_blocks();
  void require_own_process() const;
  void apply(const Options& options, bool sets_fraction);
  DeviceAllocator& owner_of(const Block& block) const;
  std::vector<DeviceAllocator*> selected(int device) const;
  std::vector<DeviceAllocator*> sleepers(PoolId pool, int device, const char* call) const;
  [[gnu::noinline]] void deallocate_outside_heaps(void* ptr);
  [[gnu::noinline]] void deallocate_uncached(void* ptr);
  [[gnu::noinline]] void* allocate_guarded(std::size_t bytes, int device, Stream stream,
                                           bool contiguous);
  [[gnu::noinline]] void deallocate_guarded(void* ptr, int device, std::size_t bytes,
                                            Stream stream);
  void deallocate_guarded(void* ptr);
  void set_up_guard(const KernelsFactory& kernels);
  void wake(const std::vector<DeviceAllocator*>& allocators, PoolId pool);
  bool is_guarded() const { return !guards_.empty(); }
  // The heap's block behind the user's pointer, still to be checked by its device.
  struct Found {
    Block* block;       // null: there is none
    const void* start;  // the pointer's address in the heap
  };
  Found find(const void* ptr) const;
  // Returns the guards of selected(device); none without a guard.
  std::vector<Guard*> guards(int device) const;
  enum class PointerUse : std::uint8_t { free, other };
  [[noreturn]] void throw_not_live(const void* ptr, PointerUse use) const;
  // Runs `action`. If it refuses a private pool that all its users have released, the guard
  // reports it.
  template <typename Action>
  auto with_pool(int device, PoolId pool, Action action) const;
  // Runs `action`, and throws what guard handlers throw for its reports when it is done.
  template <typename Action>
  void tell_after(Action action);
  PoolId pool_of_tag(std::string_view tag) const;
  bool finish_late_frees();

  std::unique_ptr<ForkGuard> fork_guard_;
  std::shared_ptr<const void> life_ = std::make_shared<char>();
  std::unique_ptr<PageMap> page_map_;
  // The fast paths' view of page_map_ and devices_. It is empty with the guard on and in a forked
  // child, so that every call there leaves the fast paths, and no other call pays for the question.
  const PageMap* unguarded_map_;
  std::vector<DeviceAllocator*> unguarded_devices_;
  mutable std::mutex options_mutex_;
  Options options_;
  std::atomic<bool> caching_enabled_{true};
  DeviceAllocators devices_;  // empty in a forked child
  std::unique_ptr<GuardLog> guard_log_;
  std::vector<std::unique_ptr<Guard>> guards_;  // one for each device with the guard on, else empty
  std::mutex late_frees_mutex_;
  std::vector<void*> late_frees_;  // live allocations whose free the device has refused so far
  bool has_had_late_frees_ = false;
  mutable std::mutex tags_mutex_;
  std::map<std::string, std::uint64_t, std::less<>> tags_;  // the numbers of tags, from 1 on
};

}  // namespace cachalot
