/// @file
/// The events of an allocator and the functions of a program that receive them: changes, history,
/// watchers, slow work, memory that runs out.
#pragma once

#include "cachalot/require_cpp17.h"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <iterator>
#include <memory>
#include <vector>

#include "cachalot/call_stack.h"
#include "cachalot/device.h"

CACHALOT_BEGIN_API

/// A Context is an opaque value that says where in the program a change came from, such as a Python
/// stack. A ContextRecorder makes it; the allocator only keeps it.
using Context = std::shared_ptr<void>;

/// A Change describes one thing that happened to memory. A trace is the last Changes, and
/// statistics and snapshots agree with the sum of all Changes.
struct Change {
  /// The kinds of changes. The first nine are the actions of PyTorch's traces, under PyTorch's
  /// names; JSON leaves out the others.
  enum class Action : std::uint8_t {
    alloc,           ///< a block was handed out
    free_requested,  ///< the caller freed a block
    /// A freed block became free: at once, or when other streams were done with it.
    free_completed,
    segment_alloc,  ///< a segment came from the device
    segment_free,   ///< a segment went back to the device
    segment_map,    ///< pages were mapped (page heap)
    segment_unmap,  ///< pages were unmapped (page heap)
    snapshot,       ///< a snapshot was taken
    oom,            ///< a request failed for want of memory
    synchronize,    ///< the allocator waited for all pending events
    retry,          ///< the allocator gave its cache back and asked the device again
    empty_cache,    ///< empty_cache was called
    annotate,       ///< a live allocation was annotated (PyTorch's since 2.14)
  };

  Action action = Action::alloc;         ///< the kind of the change
  PoolKind pool_kind = PoolKind::small;  ///< size class of the block or segment
  int device = 0;                        ///< index of the device
  /// Address of the block or segment. For oom: bytes that were free on the device, as in PyTorch.
  Address address = 0;
  /// Bytes. For alloc, free_* and annotate: as requested; for segment_*: of the segment; for oom:
  /// of the request, rounded; for snapshot: of the blocks in use.
  std::size_t bytes = 0;
  std::size_t block_bytes = 0;  ///< for alloc and free_*: bytes of the block
  Stream stream = nullptr;      ///< stream that the memory is for
  PoolId pool{};                ///< private pool, or the default pool
  std::int64_t time_us = 0;     ///< Device::clock_us, microseconds
  /// By how many blocks this change moved the statistic inactive_split (free blocks that are part
  /// of a split segment).
  std::int64_t inactive_split_blocks = 0;
  std::int64_t inactive_split_bytes = 0;  ///< the same in bytes
  Context context{};                      ///< null unless recorded
  Context annotation{};    ///< result of HistoryOptions::annotate, or what `annotate` was given
  bool is_placed = false;  ///< part of an allocate_at, which may also hand out and free a prefix
};

/// Returns the name of the action: "alloc", "free_requested", ...
constexpr const char* to_string(Change::Action action) {
  constexpr const char* kNames[] = {
      "alloc",       "free_requested", "free_completed", "segment_alloc", "segment_free",
      "segment_map", "segment_unmap",  "snapshot",       "oom",           "synchronize",
      "retry",       "empty_cache",    "annotate",       "unknown"};  // in the order of Action
  const auto number = static_cast<std::size_t>(action);
  return kNames[number <= static_cast<std::size_t>(Change::Action::annotate)
                    ? number
                    : std::size(kNames) - 1];
}

/// A ChangeTracker is called for every change with the device's lock held. It must be fast and must
/// not call the allocator.
using ChangeTracker = std::function<void(const Change&)>;

/// A ContextRecorder makes the Context that is kept with a change. It is called without locks and
/// may be slow.
using ContextRecorder = std::function<Context()>;

/// HistoryOptions say which changes CachingAllocator::record_history keeps.
struct HistoryOptions {
  /// The changes that carry a Context; PyTorch's "record levels".
  enum class Contexts {
    never,  ///< no change
    state,  ///< segments
    alloc,  ///< segments and allocations
    all,    ///< segments, allocations and frees
  };
  bool enabled = true;                  ///< false stops recording and drops the entries
  std::size_t max_entries = 1;          ///< changes kept for each device, the newest; at least 1
  Contexts contexts = Contexts::never;  ///< the changes that carry a Context
  /// Makes the Contexts; required unless `contexts` is never.
  ContextRecorder recorder{};
  /// Returns the annotation of a change. Called for every change with the device's lock held: it
  /// must be fast and must not call the allocator.
  std::function<Context()> annotate{};
  bool clear = false;                  ///< drop the entries recorded so far
  std::vector<Change::Action> skip{};  ///< actions that are not recorded
};

/// A Watcher observes every allocation and free, with the call stack of each allocation. Derive
/// from it and pass it to CachingAllocator::add_watcher.
///
/// A watcher sees the blocks of the user, whatever the history records. With the guard on these are
/// the blocks that the guard hands out, and a free is seen when the user frees, not when the block
/// leaves quarantine.
///
/// Cost: while there is a watcher, each allocation takes a call stack and goes past the thread
/// caches.
class Watcher {
 public:
  virtual ~Watcher() = default;

  /// Called for every change. A block's free is reported before its memory is allocated again. With
  /// the guard on, only alloc and free_requested are reported.
  ///
  /// `stack` is the stack of the allocation (Change::Action::alloc), taken before any lock. It is
  /// empty for other changes and for blocks restored by a checkpoint.
  ///
  /// Called with the device's lock held; calls for different devices may run concurrently.
  /// Requires: the function is fast and does not call the allocator.
  virtual void on_change(const Change& change, const CallStack& stack) noexcept = 0;
};

/// A SegmentTracker observes which memory an allocator holds: it receives all memory that is held
/// when it is added, then each part that comes and each part that ends. It is for programs that
/// register memory with NCCL or a network card. Derive from it and pass it to
/// CachingAllocator::add_segment_tracker.
///
/// Memory that is allocated while caching is off, and memory of open_shared, is not reported.
///
/// Cost: allocations and frees that need no memory of the device cost nothing more.
class SegmentTracker {
 public:
  virtual ~SegmentTracker() = default;

  /// Called with a Change of action segment_alloc or segment_map after memory came; of action
  /// segment_free before the device gets a segment back, and segment_alloc again if it refuses it;
  /// and of action segment_unmap when pages go. Memory ends when it falls asleep, and comes
  /// when it wakes. Pages that move end at one address and come at another.
  ///
  /// A segment ends whole, and a segment of cudaMalloc keeps its physical memory until then. Pages
  /// end in parts of their own: a piece of a part that came, or several.
  ///
  /// Called with the device's lock held; calls for different devices may run concurrently.
  /// Requires: the function is fast, does not call the allocator, and takes no lock that a thread
  /// may hold while it calls the allocator, such as Python's GIL.
  virtual void on_segment(const Change& change) noexcept = 0;
};

/// A SlowWork describes one stretch of work that an allocator does beside handing out free blocks.
struct SlowWork {
  /// The kinds of work.
  enum class Kind : std::uint8_t {
    grow,              ///< a request that no free block of its stream serves
    empty_cache,       ///< CachingAllocator::empty_cache
    release_physical,  ///< AllocatorSleep::release_physical
    restore_physical,  ///< AllocatorSleep::restore_physical
    evict,             ///< a tag gives way (AllocatorSleep::make_evictable)
  };
  Kind kind = Kind::grow;  ///< the kind of work
  int device = 0;          ///< index of the device
  std::size_t bytes = 0;   ///< for grow: of the request; otherwise 0
};

/// Returns the name of the kind: "grow", "empty_cache", ...
constexpr const char* to_string(SlowWork::Kind kind) {
  switch (kind) {
    case SlowWork::Kind::grow:
      return "grow";
    case SlowWork::Kind::empty_cache:
      return "empty_cache";
    case SlowWork::Kind::release_physical:
      return "release_physical";
    case SlowWork::Kind::restore_physical:
      return "restore_physical";
    case SlowWork::Kind::evict:
      return "evict";
  }
  return "unknown";
}

/// A SlowWorkObserver observes when each SlowWork begins and ends, on the thread that does the
/// work.
/// Derive from it and pass it to CachingAllocator::set_slow_work_observer.
///
/// Both functions are called with the device's lock held, or with none. Calls for different devices
/// and threads may run concurrently.
/// Requires: the functions are fast, do not call the allocator, and take no lock that a thread may
/// hold while it calls the allocator, such as Python's GIL.
/// Cost: without an observer a slow path tests one pointer. Other calls cost nothing more, with or
/// without one.
class SlowWorkObserver {
 public:
  virtual ~SlowWorkObserver() = default;
  /// Called when the work begins.
  virtual void on_begin(const SlowWork& work) noexcept = 0;
  /// Called when the work ends, by an exception as well.
  virtual void on_end(const SlowWork& work) noexcept = 0;
};

/// The largest request is smaller than this many bytes: 1 EiB, PyTorch's limit.
inline constexpr std::size_t kMaxRequestBytes = std::size_t{1} << 60;

/// An OutOfMemoryReport describes a request that is about to fail.
struct OutOfMemoryReport {
  int device = 0;                 ///< index of the device
  std::size_t segment_bytes = 0;  ///< bytes that the device was asked for
  /// Bytes that the memory fraction allows, else the device's total.
  std::size_t allowed_bytes = 0;
  std::size_t device_free_bytes = 0;   ///< bytes that are free on the device
  std::size_t device_total_bytes = 0;  ///< bytes of the device
  std::size_t requested_bytes = 0;     ///< bytes that the caller asked for
  Stream stream = nullptr;             ///< the stream of the request
  PoolId pool;                         ///< the pool of the request; a sleeping one is being woken
};

/// An OutOfMemoryObserver is called before an OutOfMemory is thrown, with none of the allocator's
/// locks held: it may call the allocator. An exception that it throws replaces the OutOfMemory.
using OutOfMemoryObserver = std::function<void(const OutOfMemoryReport&)>;

/// A RefusalReport describes a request that the option throw_on_cudamalloc_oom refuses.
struct RefusalReport {
  int device = 0;                 ///< index of the device
  std::size_t segment_bytes = 0;  ///< bytes that the device would have been asked for
  std::size_t held_bytes = 0;     ///< bytes held from the device by then
  std::size_t total_bytes = 0;    ///< the device's total
  /// Bytes that the caller asked for.
  std::size_t requested_bytes = 0;
};

/// A RefusalObserver is called before the OutOfMemory of a refusal is thrown, with none of the
/// allocator's locks held: it may call the allocator. An exception that it throws replaces the
/// OutOfMemory.
using RefusalObserver = std::function<void(const RefusalReport&)>;

/// A FreeMemoryCallback is called before the allocator asks the device for memory, with none of the
/// allocator's locks held: it may call the allocator. It frees what it can.
/// Returns true if it freed anything; the allocator then searches its free blocks again.
using FreeMemoryCallback = std::function<bool()>;

CACHALOT_END_API
