/// @file
/// The caching allocator of GPU memory.
#pragma once

#include "cachalot/require_cpp17.h"

#include <cstddef>
#include <memory>
#include <vector>

#include "cachalot/allocator_groups.h"
#include "cachalot/device.h"  // cuda_devices(), too
#include "cachalot/errors.h"
#include "cachalot/events.h"
#include "cachalot/options.h"
#include "cachalot/private_pool.h"
#include "cachalot/same_version.h"
#include "cachalot/stats.h"

CACHALOT_BEGIN_API

class CachedPath;
class DeviceAllocator;
class PageMap;
struct Block;

/// The alignment of every allocation: 512 bytes.
inline constexpr std::size_t kUsualAlignment = 512;
/// The largest alignment that an allocation may be asked for with: 2 MiB.
inline constexpr std::size_t kMaxAlignment = std::size_t{2} << 20;

/// AllocateOptions say how an allocation may be asked for.
struct AllocateOptions {
  /// The allocation lies in one physical handle, to be exported or registered with a network card.
  /// Over heap:pages this costs a new handle if no idle handle has the room. Over heap:segments
  /// every allocation lies in one piece.
  bool contiguous = false;
  /// The address is a multiple of this number: a power of two up to kMaxAlignment. Every allocation
  /// is aligned to 512. For more, a free block is divided: what lies before and behind the
  /// allocation stays free. If no free block has the room, the device is asked for as many bytes
  /// more.
  std::size_t alignment = kUsualAlignment;
  /// The allocation is plain memory: it lies in a segment of the device's malloc (cudaMalloc), with
  /// PyTorch's policy, whatever the heap. So it can be shared by cudaIpcGetMemHandle and registered
  /// by drivers that know no virtual memory, and its physical pages never change. It cannot sleep
  /// (release_physical). Over heap:segments all memory is plain.
  bool plain = false;
};

/// A CachingAllocator allocates memory of one or several devices and caches freed memory.
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
/// Groups: most functions are those of its base classes, such as AllocatorFigures and
/// AllocatorPools. A function that needs one group takes a reference to that class.
///
/// Limits: a segment is smaller than 1 TiB and a device address has at most 48 bits. Memory beyond
/// these limits goes back to the device, and the request throws InvalidArgument.
class CachingAllocator : public AllocatorFigures,
                         public AllocatorSettings,
                         public AllocatorLimits,
                         public AllocatorObservers,
                         public AllocatorPools,
                         public AllocatorSleep,
                         public AllocatorSharing {
 public:
  /// Makes an allocator of these devices, which it asks for no memory yet. `guard` makes the guard,
  /// which the options guard:True and debug:True need: guard_factory(kernels_for) of guard.h.
  /// Throws InvalidArgument unless devices[i]->index() == i, and if the options need a guard and
  /// `guard` is empty.
  explicit CachingAllocator(std::vector<std::shared_ptr<Device>> devices,
                            const Options& options = {}, const FrontFactory& guard = {});
  /// Gives every segment back to its device, those with live allocations included.
  ~CachingAllocator();
  CachingAllocator(const CachingAllocator&) = delete;
  CachingAllocator& operator=(const CachingAllocator&) = delete;

  /// Returns true in a forked child of the process that made the allocator.
  bool is_inherited() const;
  /// Returns the number of devices; 0 in a forked child.
  int device_count() const;
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
  /// Throws InvalidArgument for an alignment that is not a power of two or above kMaxAlignment,
  /// also for 0 bytes.
  void* allocate(std::size_t bytes, int device, Stream stream, const AllocateOptions& options);
  /// Returns `bytes` bytes at `address` for work on `stream`, from free memory of the pool that
  /// serves a request of this size; nullptr for 0 bytes. It makes no driver call. Free memory
  /// before the address is handed out and freed for it, and statistics count that (PyTorch's rule).
  /// Throws InvalidArgument if `address` is not a multiple of 512, if the memory there is not free
  /// for this request, and with the guard on.
  void* allocate_at(std::size_t bytes, int device, Stream stream, void* address);
  /// Returns plain memory (AllocateOptions) that can take the place of the live allocation `ptr`,
  /// which stays: for as many bytes, for its stream, of its pool or tag, and with the streams
  /// recorded on it. Returns nullptr if `ptr` is plain memory. It copies nothing.
  /// Throws OutOfMemory. Throws InvalidArgument for a pointer that is not a live allocation, for
  /// memory that is asleep, and while a graph is captured, unless `ptr` is plain memory.
  void* allocate_plain_beside(const void* ptr);
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

  /// Gives cached segments without a live block back to the device, except for memory of reserve
  /// that no stream has used; those of a private pool only once all its users have released it.
  /// With a pool id, only segments of that private pool go back. Does nothing while a stream
  /// captures a graph. On a thread that is redirected into a pool it leaves the default pool alone
  /// (PyTorch's rule).
  /// Blocks: until other streams are done with freed memory.
  void empty_cache(int device = kAllDevices, PoolId pool = {});
  /// Returns every thread's cached blocks to the shared heap. empty_cache and a request that would
  /// fail otherwise do so, too.
  void drain_thread_caches(int device = kAllDevices);
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

 private:
  class ForkGuard;
  friend class CachedPath;
  friend class AllocatorGuard;

  // Takes the state over. A reference, so that `CachingAllocator({})` stays the allocator without
  // devices.
  explicit CachingAllocator(AllocatorState& state);
  static const PageMap& no_blocks();
  DeviceAllocator& owner_of(const Block& block) const;
  [[gnu::noinline]] void* allocate_outside_heaps(std::size_t bytes, int device, Stream stream);
  [[gnu::noinline]] void deallocate_outside_heaps(void* ptr);
  [[gnu::noinline]] void deallocate_outside_heaps(void* ptr, std::size_t bytes, int device,
                                                  Stream stream);
  bool finish_late_frees();

  std::unique_ptr<AllocatorState> state_;
  // The devices and their page map, for the fast paths. Both are empty with the guard on and in a
  // forked child, so that every call there leaves the fast paths, and no other call pays for the
  // question.
  const PageMap* unguarded_map_;
  std::vector<DeviceAllocator*> unguarded_devices_;
  std::shared_ptr<const void> life_ = std::make_shared<char>();
  std::unique_ptr<ForkGuard> fork_guard_;
};

CACHALOT_END_API
