/// @file
/// The functions of CachingAllocator, by group.
#pragma once

#include "cachalot/require_cpp17.h"

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "cachalot/device.h"
#include "cachalot/events.h"
#include "cachalot/options.h"
#include "cachalot/private_pool.h"
#include "cachalot/span.h"
#include "cachalot/stats.h"

CACHALOT_BEGIN_API

class AllocatorState;
class Front;

/// A FrontFactory makes the part of an allocator that sees every malloc and free before its heaps
/// do: guard_factory() of guard.h (library cachalot::diagnostics) makes the guard.
using FrontFactory = std::function<std::unique_ptr<Front>(AllocatorState&)>;

/// Names all devices of an allocator where a function takes the index of one.
inline constexpr int kAllDevices = -1;

/// An AllocatorGroup is a group of a CachingAllocator's functions. All groups of an allocator use
/// its devices and its options, which are not part of the interface.
class AllocatorGroup {
 public:
  AllocatorGroup(const AllocatorGroup&) = delete;
  AllocatorGroup& operator=(const AllocatorGroup&) = delete;

 protected:
  /// Makes the group for the allocator with this state.
  explicit AllocatorGroup(AllocatorState& state) : state_(state) {}
  ~AllocatorGroup() = default;

  /// The state of the allocator, which all its groups share.
  AllocatorState& state_;  // NOLINT(readability-identifier-naming): the groups use it
};

/// AllocatorFigures are the statistics and snapshots of a CachingAllocator, and the checks of its
/// tables.
///
/// All figures are in bytes and exact at every moment. With thread_cache the peaks may be off, by
/// at most 2 MiB for each of several threads that allocated concurrently.
class AllocatorFigures : private AllocatorGroup {
 public:
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
  /// Returns the statistics that PyTorch has since 2.12 and 2.13. reset_peak_stats and
  /// reset_accumulated_stats reset them, too.
  AddedStats added_stats(int device = 0) const;
  /// Returns how well memory is used now.
  Fragmentation fragmentation(int device = 0) const;
  /// Returns the statistics and the memory of each pool at one moment. It takes a microsecond and
  /// some nanoseconds for each free block, under the lock of the device.
  DeviceUsage device_usage(int device = 0) const;
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

  /// Walks all tables. Returns "" or the first broken invariant. For tests: it is slow.
  std::string validate() const;
  /// Returns the host bytes of the allocator's own tables.
  std::size_t metadata_bytes() const;

 protected:
  /// Makes the group for the allocator with this state.
  explicit AllocatorFigures(AllocatorState& state) : AllocatorGroup(state) {}
  ~AllocatorFigures() = default;
};

/// AllocatorSettings are the options of a CachingAllocator, the limit of its memory, and whether it
/// caches.
class AllocatorSettings : private AllocatorGroup {
 public:
  /// Applies options in their text form (options.h). `heap`, `guard` and `debug` cannot
  /// change after the allocator is made.
  /// Throws InvalidArgument, which names key, value and rule, and then applies nothing.
  void configure(std::string_view options);
  /// Replaces all options. If per_process_memory_fraction is unchanged, a fraction set by
  /// set_memory_fraction is kept; if `limit` is unchanged, a limit set by set_limit is. Throws as
  /// the function above.
  void configure(const Options& options);
  /// Returns the options.
  Options options() const;
  /// Limits the bytes held from the device to floor(fraction x total memory). 1 lifts the limit.
  /// Memory that is held already stays. With a limit of AllocatorLimits the lower one holds.
  /// Throws InvalidArgument unless `fraction` is in [0, 1].
  void set_memory_fraction(double fraction, int device = 0);
  /// Returns the fraction; 1 without a limit.
  double memory_fraction(int device = 0) const;
  /// Turns caching on or off. While it is off, allocations come from the device and go back to it
  /// at once, and the statistics do not contain them.
  void set_caching_enabled(bool enabled);
  /// Returns true if caching is on, which is the default.
  bool caching_enabled() const;

 protected:
  /// Makes the group for the allocator with this state.
  explicit AllocatorSettings(AllocatorState& state) : AllocatorGroup(state) {}
  ~AllocatorSettings() = default;
};

/// AllocatorLimits are the functions of a CachingAllocator that bound, lower and raise the memory
/// that it holds from a device. Held memory is allocated and cached memory: the statistic
/// reserved_bytes. Memory that is allocated while caching is off does not count.
class AllocatorLimits : private AllocatorGroup {
 public:
  /// Limits the bytes held from the device, beside set_memory_fraction: of the two limits the lower
  /// one holds. Growth that would exceed the limit gives back cached memory first, as growth on a
  /// full device does, and then throws OutOfMemory, which names the limit and its setting; the
  /// device is not asked. MemoryLimit::Base::none lifts this limit.
  /// If more is held than the limit allows, cached memory is given back as by trim; memory in use
  /// stays valid, and growth is refused until less is held.
  /// Throws CudaError if the device cannot tell its free memory; the limit is then as before.
  /// Blocks: as trim, if more is held than the limit allows.
  void set_limit(const MemoryLimit& limit, int device = 0);
  /// Sets the bytes above which `callback` is called: once, until held memory has been at or below
  /// them again. If more is held already, it is called at the next growth.
  /// MemoryLimit::Base::none lifts the soft limit; `callback` may then be empty.
  /// Throws InvalidArgument for an empty callback, CudaError as set_limit.
  void set_soft_limit(const MemoryLimit& limit, SoftLimitCallback callback, int device = 0);
  /// Returns the limits and what counts against them.
  LimitFigures limit_figures(int device = 0) const;

  /// Gives cached memory back to the device as long as at least `keep_bytes` stay held, without a
  /// wait for the device's work (no cudaDeviceSynchronize). Memory in use is not touched; memory of
  /// private pools and of tags stays.
  /// Over heap:pages, memory goes back whose work is done by now, in handles (page_size_mb); other
  /// memory stays cached. Memory of a stream that may have been destroyed meanwhile stays as well:
  /// see the option immortal_streams.
  /// Over heap:segments and heap:managed, whole free segments go back by cudaFree, which itself
  /// waits for the work that is queued on the device. Over heap:async they go back behind the work
  /// of their streams (cudaFreeAsync); CUDA's pool returns them at its next synchronization.
  /// Does nothing while a stream captures a graph.
  /// Returns the bytes given back. Throws CudaError; memory that the device refused stays cached.
  std::size_t trim(std::size_t keep_bytes, int device = 0);

  /// Takes memory from the device beforehand, until `bytes` bytes are cached that no stream has
  /// used. They serve requests of every stream but those of private pools, without a driver call:
  /// over heap:pages of all sizes; over the other heaps, for the stream that asks first, sizes of
  /// more than 1 MiB, and from a 32nd of the bytes (at least 2 MiB) smaller ones. Memory that is
  /// cached already is bound to streams and does not count.
  /// Garbage collection and empty_cache do not give the memory back. trim and the recovery of a
  /// request that finds no memory do.
  /// Throws OutOfMemory if the device or a limit does not have the room, with as much held as
  /// before, or less, since cached memory was given back first. Throws InvalidArgument for 1 EiB
  /// and more, and while a stream captures a graph.
  void reserve(std::size_t bytes, int device = 0);

 protected:
  /// Makes the group for the allocator with this state.
  explicit AllocatorLimits(AllocatorState& state) : AllocatorGroup(state) {}
  ~AllocatorLimits() = default;
};

/// AllocatorObservers are the functions of a CachingAllocator that add and remove observers of its
/// changes.
///
/// The observers of add_out_of_memory_observer, add_refusal_observer, add_free_memory_callback and
/// add_change_tracker stay until the allocator is destroyed.
class AllocatorObservers : private AllocatorGroup {
 public:
  /// Adds an observer of requests that fail. Throws InvalidArgument for an empty function.
  void add_out_of_memory_observer(const OutOfMemoryObserver& observer);
  /// Adds an observer of requests that throw_on_cudamalloc_oom refuses. Throws InvalidArgument for
  /// an empty function.
  void add_refusal_observer(const RefusalObserver& observer);
  /// Adds a callback that frees memory when it is needed. Throws InvalidArgument for an empty
  /// function.
  void add_free_memory_callback(const FreeMemoryCallback& callback);
  /// Adds a callback that frees memory when a request would fail otherwise, after all memory that
  /// is cached was given back. Where one returns true, the request is tried once more. Throws
  /// InvalidArgument for an empty function.
  void add_last_resort(const FreeMemoryCallback& callback);
  /// Adds a tracker of changes. Throws InvalidArgument for an empty function.
  void add_change_tracker(const ChangeTracker& tracker);
  /// Adds an observer of every change on every device, with the call stacks of allocations, until
  /// it is removed. Throws InvalidArgument for a null pointer.
  void add_watcher(const std::shared_ptr<Watcher>& watcher);
  /// Removes a watcher; it is not called after this returns. An unknown watcher is ignored.
  void remove_watcher(const Watcher* watcher);
  /// Adds a tracker of segments. Before this returns, the tracker receives all memory that is held:
  /// it misses none, then and later, and receives none twice.
  /// Requires: it was not added before. Throws InvalidArgument for a null pointer.
  /// Blocks: while another thread gets memory from a device or gives it back.
  void add_segment_tracker(const std::shared_ptr<SegmentTracker>& tracker);
  /// Removes a tracker of segments; it is not called after this returns. An unknown tracker is
  /// ignored.
  void remove_segment_tracker(const SegmentTracker* tracker);
  /// Makes `observer` the only observer of slow work; null for none.
  void set_slow_work_observer(const std::shared_ptr<SlowWorkObserver>& observer);
  /// Starts, changes or stops the recording of changes, as `history` says.
  /// Throws InvalidArgument for an enabled history with max_entries 0, or with contexts and no
  /// recorder.
  void record_history(const HistoryOptions& history);
  /// Records that the live allocation `ptr` is `annotation`: a Change of action annotate with the
  /// allocation's address and requested bytes, whose annotation this is. It does nothing if no
  /// history, tracker or watcher observes.
  /// Throws InvalidArgument for a pointer that is not a live allocation.
  void annotate(const void* ptr, const Context& annotation);
  /// Returns the Context of the live allocation `ptr`; null if it has none, and for any other
  /// pointer.
  Context context_of(const void* ptr) const;
  /// Returns true if changes are recorded on any device.
  bool history_enabled() const;

 protected:
  /// Makes the group for the allocator with this state.
  explicit AllocatorObservers(AllocatorState& state) : AllocatorGroup(state) {}
  ~AllocatorObservers() = default;
};

/// AllocatorPools are the private pools of a CachingAllocator.
///
/// A pool exists from its first create_or_retain_pool or begin_allocate_to_pool. Each of these
/// adds a user and each release_pool removes one. empty_cache gives back the memory of a pool
/// without users. Functions that need an existing pool throw InvalidArgument for an unknown one.
/// The default id (0, 0) names no private pool.
class AllocatorPools : private AllocatorGroup {
 public:
  /// Makes the pool if it does not exist, and adds a user. `provider` supplies the segments of a
  /// new pool, or the device if it is null.
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
  /// Tells that a stream of the device captures a graph from now on, whatever is redirected: the
  /// same as a redirection for a capture, without one. Captures are counted.
  void begin_capture(int device);
  /// Tells that a capture has ended. Does nothing if none was begun.
  void end_capture(int device);
  /// Removes a user. Throws InvalidArgument if the pool has none.
  void release_pool(int device, PoolId pool);
  /// Returns the number of users; 0 for an unknown pool.
  int pool_use_count(int device, PoolId pool) const;
  /// Allows or forbids that free blocks of the pool serve requests of the default pool as a last
  /// resort.
  void set_use_on_oom(int device, PoolId pool, bool use_on_oom);
  /// Makes the pool hand out blocks whole from now on: it splits none.
  void set_no_split(int device, PoolId pool);
  /// Makes the pool's requests be for plain memory (AllocateOptions) from now on: for memory that
  /// is exported by cudaIpcGetMemHandle. A pool with a segment provider has the provider's.
  void set_plain(int device, PoolId pool);
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

 protected:
  /// Makes the group for the allocator with this state.
  explicit AllocatorPools(AllocatorState& state) : AllocatorGroup(state) {}
  ~AllocatorPools() = default;
};

/// AllocatorSleep are the functions of a CachingAllocator that put the memory of a tag or of a
/// private pool to sleep and wake it.
class AllocatorSleep : private AllocatorGroup {
 public:
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
  /// Their content is lost, or kept where the options say, and restored. Free memory loses its
  /// content; it comes back if the pool is in use, since a graph may know its addresses.
  ///
  /// Devices follow one after the other: if one throws, those before it are done, and the call may
  /// be repeated. After a CudaError a part of the memory may be asleep; the saved content is kept,
  /// and a further call goes on.
  ///
  /// Requires: work on the memory is done, or is on its own device; other GPUs are not waited for.
  /// Throws InvalidArgument for an unknown tag, another heap, while a stream of the device
  /// captures, and for a folder in which no file can be made.
  /// Throws OutOfMemory if the host has too little pinned memory to save to, or the folder's disk
  /// too little room; that device's memory is then as before.
  /// Blocks: until the device's work is done.
  void release_physical(std::string_view tag, const SleepOptions& options,
                        int device = kAllDevices);
  /// Does so with Keep::pinned or, without `save`, Keep::nothing.
  void release_physical(std::string_view tag, bool save = false, int device = kAllDevices);
  /// Wakes the tag: brings memory, and the saved content, to the same addresses. Does nothing if
  /// the tag is awake. Gives back cached memory of others to make room; memory limits hold.
  /// Throws OutOfMemory if there is too little memory; the device's memory is then asleep as
  /// before, except for parts that the device did not take back. Otherwise as release_physical.
  void restore_physical(std::string_view tag, int device = kAllDevices);
  /// Puts several tags to sleep, one after the other: release_tags({"weights", "kv_cache"}).
  /// Throws InvalidArgument as release_physical, and does nothing then if a tag is unknown. After
  /// any other exception the tags before the one that failed are asleep, and the call may be
  /// repeated.
  void release_tags(Span<const std::string_view> tags, const SleepOptions& options,
                    int device = kAllDevices);
  /// Does so with Keep::pinned or, without `save`, Keep::nothing.
  void release_tags(Span<const std::string_view> tags, bool save = false, int device = kAllDevices);
  /// Wakes several tags, one after the other; otherwise as release_tags and restore_physical.
  void restore_tags(Span<const std::string_view> tags, int device = kAllDevices);
  /// Puts a private pool to sleep, such as a CUDA graph's or a MemPool; otherwise as the function
  /// of a tag.
  /// Throws InvalidArgument also if no device has the pool, and for a pool with a SegmentProvider.
  void release_physical(PoolId pool, const SleepOptions& options, int device = kAllDevices);
  /// Does so with Keep::pinned or, without `save`, Keep::nothing.
  void release_physical(PoolId pool, bool save = false, int device = kAllDevices);
  /// Wakes a private pool; otherwise as the function of a tag.
  /// Throws InvalidArgument also if no device has the pool.
  void restore_physical(PoolId pool, int device = kAllDevices);
  /// Makes the tag evictable: its memory gives way, as by release_physical, where a request or a
  /// restore_physical would otherwise throw OutOfMemory, and to give_way; but not while it is held
  /// (ensure), while a thread is in a region of the tag, and while a graph is captured. The tag
  /// with the lowest priority gives way first, of several the tag that was ensured longest ago. To
  /// bring back an evictable tag, others give way up to its own priority. A tag for which the host
  /// has no memory, or its folder no room, stays. Needs heap:pages. Makes the tag if there is none.
  /// Throws InvalidArgument for an empty tag, another heap, and a folder in which no file can be
  /// made.
  void make_evictable(std::string_view tag, const EvictOptions& options, int device = kAllDevices);
  /// Takes make_evictable back; an evicted tag stays asleep until ensure or restore_physical.
  /// Throws InvalidArgument for an unknown tag.
  void make_resident(std::string_view tag, int device = kAllDevices);
  /// Wakes the tag if it is asleep, has its lost content made again (EvictOptions::refill), and
  /// holds it: until let_go it does not give way. Holds are counted. Work that uses the memory is
  /// to be queued under a hold; it need not be done at let_go, since an eviction waits for it.
  /// Returns true if this woke memory whose content was lost, by an eviction or a release_physical
  /// that kept nothing, and the tag has no `refill`; the next call returns false.
  /// Throws the errors of restore_physical, if the tag is asleep, and those of `refill`; the tag is
  /// then not held.
  /// Blocks: concurrent calls of ensure, while memory comes back.
  bool ensure(std::string_view tag, int device = kAllDevices);
  /// Ends a hold of ensure. Throws InvalidArgument for an unknown tag, and if the tag is not held.
  /// Does nothing in a forked child.
  void let_go(std::string_view tag, int device = kAllDevices);
  /// Gives at least `bytes` bytes back to the device, as far as possible: cached memory as by trim,
  /// then evictable tags as make_evictable says. It is for memory that others need, such as other
  /// processes. Returns the bytes given back. Does nothing while a stream captures a graph.
  /// Throws CudaError, after a part may have been given back.
  /// Blocks: until the device's work is done, if a tag gives way.
  std::size_t give_way(std::size_t bytes, int device = 0);

  /// Copies content that sleeping memory keeps to the host: `bytes` bytes of live allocations, from
  /// `from` on. Returns false unless all of it is kept; `to` is then undefined.
  /// Blocks: other slow calls of the device, while it copies.
  /// Throws InvalidArgument in a forked child.
  bool read_saved(const void* from, void* to, std::size_t bytes) const;
  /// Returns the memory of each tag on each device, sorted by tag and device, without the devices
  /// on which a tag holds nothing and is awake.
  /// Throws InvalidArgument in a forked child.
  std::vector<TagMemory> tags() const;

 protected:
  /// Makes the group for the allocator with this state.
  explicit AllocatorSleep(AllocatorState& state) : AllocatorGroup(state) {}
  ~AllocatorSleep() = default;
};

/// AllocatorSharing are the functions of a CachingAllocator that share memory with other processes
/// and other GPUs.
class AllocatorSharing : private AllocatorGroup {
 public:
  /// Returns the number of physical handles that the live allocation `ptr` lies in; 1 over
  /// heap:segments.
  std::size_t handle_count(const void* ptr) const;
  /// Returns what other processes need to open the live allocation `ptr`. Its descriptors stay the
  /// allocator's and are open as long as `ptr` lives. All memory of the same handles or segment can
  /// be reached through them.
  /// Throws InvalidArgument if the memory is asleep. Memory shared before release_physical does not
  /// show the memory that restore_physical brings.
  SharedMemory share(const void* ptr);
  /// Returns what share returns, for an allocation in one handle.
  /// Throws InvalidArgument also for an allocation in several handles.
  SharedMemory share_contiguous(const void* ptr);
  /// Opens memory that another process shared, on the device whose memory it is. Returns the
  /// address in this process where the segment or the first handle begins; the allocation is
  /// memory.offset behind. Descriptors in `memory` must be of this process (sent over a socket, or
  /// taken by pidfd_getfd) and stay the caller's.
  /// Handles with keys that are open here side by side, in the same order, are not mapped again:
  /// the same memory has one address, however often it is opened. Their descriptors are not used.
  void* open_shared(const SharedMemory& memory, int device = 0);
  /// Closes what open_shared returned. Each open_shared needs one close_shared; the last one unmaps
  /// the memory. While a graph is captured, and after a CudaError of this function, it stays mapped
  /// until the next close_shared.
  /// Throws InvalidArgument if `base` is not open.
  /// Blocks: if memory is unmapped, until this device's work is done; work of its peers is not
  /// waited for.
  void close_shared(void* base);

  /// Allows work of `device` to use memory of `peer`, allocated before or later:
  /// cudaDeviceEnablePeerAccess, for heap:pages access to each mapping, and access to the pool of
  /// CUDA's that heap:async uses.
  /// Throws InvalidArgument if both are one device. A call that fails may have opened a part and
  /// may be repeated.
  void enable_peer_access(int device, int peer);

 protected:
  /// Makes the group for the allocator with this state.
  explicit AllocatorSharing(AllocatorState& state) : AllocatorGroup(state) {}
  ~AllocatorSharing() = default;
};

CACHALOT_END_API
