/// @file
/// Observers of an allocator.
#pragma once

#include "cachalot/require_cpp17.h"

#include <memory>

#include "cachalot/allocator_group.h"
#include "cachalot/change.h"
#include "cachalot/history.h"
#include "cachalot/out_of_memory.h"
#include "cachalot/slow_work.h"
#include "cachalot/watcher.h"

CACHALOT_BEGIN_API

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
  /// Adds a tracker of changes. Throws InvalidArgument for an empty function.
  void add_change_tracker(const ChangeTracker& tracker);
  /// Adds an observer of every change on every device, with the call stacks of allocations, until
  /// it is removed. Throws InvalidArgument for a null pointer.
  void add_watcher(const std::shared_ptr<Watcher>& watcher);
  /// Removes a watcher; it is not called after this returns. An unknown watcher is ignored.
  void remove_watcher(const Watcher* watcher);
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

CACHALOT_END_API
