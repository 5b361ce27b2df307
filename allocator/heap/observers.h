// Observers pass the changes of one device's heap to the history, to trackers and to watchers, and say which contexts
// and call stacks allocations gather for them.
//
// Thread safety: functions without a token take the lock themselves; the flags are read without a lock.
#pragma once

#include <atomic>
#include <cstddef>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "base/locks.h"
#include "blocks/block.h"
#include "cachalot/call_stack.h"
#include "cachalot/events.h"

CACHALOT_BEGIN

// The call stack of the allocation that a thread is in, from where it is taken, before any lock, to where watchers are told.
// A thread's allocations nest: a callback that is to free memory may allocate.
class AllocationStack {
 public:
  // Captures the stack if `wanted`.
  explicit AllocationStack(bool wanted) : outer_(innermost_) {
    if (wanted) stack_ = CallStack::capture(CallStack::Frames::script_or_native);
    innermost_ = this;
  }
  ~AllocationStack() { innermost_ = outer_; }
  AllocationStack(const AllocationStack&) = delete;
  AllocationStack& operator=(const AllocationStack&) = delete;

  static CallStack of_this_thread() { return innermost_ != nullptr ? innermost_->stack_ : CallStack(); }

 private:
  CallStack stack_;
  const AllocationStack* const outer_;
  static inline thread_local const AllocationStack* innermost_ = nullptr;
};

// The receivers of the Changes: the ring of the last ones, the trackers, and the watchers. Values are built only while there
// is a receiver. Not thread-safe: guarded by the mutex of its DeviceAllocator.
class History {
 public:
  // Throws InvalidArgument, having changed nothing.
  void configure(const HistoryOptions& options);
  void add_tracker(ChangeTracker tracker) { trackers_.push_back(std::move(tracker)); }

  void add_watcher(std::shared_ptr<Watcher> watcher) { watchers_.push_back(std::move(watcher)); }
  // Null when it is not one of them.
  std::shared_ptr<Watcher> remove_watcher(const Watcher* watcher);
  void add_segment_tracker(std::shared_ptr<SegmentTracker> tracker) { segment_trackers_.push_back(std::move(tracker)); }
  // Null when it is not one of them.
  std::shared_ptr<SegmentTracker> remove_segment_tracker(const SegmentTracker* tracker);
  // Makes watchers receive from now on only the Changes passed to tell(), not those recorded.
  void only_tell() { only_tell_ = true; }
  void tell(const Change& change, const CallStack& stack) const;

  bool enabled() const { return enabled_; }
  bool watched() const { return !watchers_.empty(); }
  bool tells_of_changes() const { return watched() && !only_tell_; }
  // Returns whether there is a receiver of all Changes, and of those of an action.
  bool observes_all() const { return enabled_ || !trackers_.empty() || tells_of_changes(); }
  bool observes(Change::Action action) const {
    return observes_all() || (!segment_trackers_.empty() && is_of_segment(action));
  }

  Context annotation() const { return annotate_ ? annotate_() : nullptr; }
  void record(const Change& change);    // and tells the trackers and watchers
  std::vector<Change> entries() const;  // oldest first
  std::size_t metadata_bytes() const { return ring_.capacity() * sizeof(Change); }

 private:
  static bool is_of_segment(Change::Action action) {
    return action >= Change::Action::segment_alloc && action <= Change::Action::segment_unmap;
  }
  void clear();

  bool enabled_ = false;
  bool keeps_contexts_ = false;       // entries carry one from level alloc on, …
  bool keeps_free_contexts_ = false;  // … those of frees only at level all
  std::function<Context()> annotate_;
  std::vector<Change::Action> skip_;
  std::size_t max_entries_ = 1;
  std::vector<Change> ring_;
  std::size_t oldest_ = 0;
  std::vector<ChangeTracker> trackers_;
  std::vector<std::shared_ptr<SegmentTracker>> segment_trackers_;
  std::vector<std::shared_ptr<Watcher>> watchers_;
  bool only_tell_ = false;
};

// A SlowWorkRange tells the observer of a SlowWork of its begin and its end.
class SlowWorkRange {
 public:
  // `observer` may be null: then no one is notified.
  SlowWorkRange(std::shared_ptr<SlowWorkObserver> observer, const SlowWork& work)
      : observer_(std::move(observer)), work_(work) {
    if (observer_) observer_->on_begin(work_);
  }
  ~SlowWorkRange() {
    if (observer_) observer_->on_end(work_);
  }
  SlowWorkRange(const SlowWorkRange&) = delete;
  SlowWorkRange& operator=(const SlowWorkRange&) = delete;

 private:
  const std::shared_ptr<SlowWorkObserver> observer_;
  const SlowWork work_;
};

struct HeapState;

class Observers {
 public:
  using Contexts = HistoryOptions::Contexts;
  explicit Observers(HeapState& state) : state_(state) {}
  Observers(const Observers&) = delete;
  Observers& operator=(const Observers&) = delete;

  // Contracts are those of CachingAllocator's methods of the same names.
  void add_change_tracker(ChangeTracker tracker);
  void add_watcher(std::shared_ptr<Watcher> watcher);
  void remove_watcher(const Watcher* watcher);
  // The caller tells the tracker of the memory that is held already.
  void add_segment_tracker(std::shared_ptr<SegmentTracker> tracker, const Held& held) CACHALOT_HELD;
  void remove_segment_tracker(const SegmentTracker* tracker);
  void record_history(const HistoryOptions& history);
  bool history_enabled() const;

  bool is_watched() const { return watched_.load(std::memory_order_relaxed); }
  void set_slow_work_observer(std::shared_ptr<SlowWorkObserver> observer);
  std::shared_ptr<SlowWorkObserver> slow_work_observer() const;
  const std::shared_ptr<SlowWorkObserver>& slow_work_observer(const Held& held) const CACHALOT_HELD {
    holds(held);
    return slow_work_observer_;
  }
  // Makes watchers receive the front's blocks from now on, by tell_watchers, instead of the heap's.
  void watch_through_front();
  void tell_watchers(Change change, const CallStack& stack);

  // Returns which calls gather a context; `state` also if watchers want the stacks of allocations.
  Contexts contexts() const { return contexts_.load(std::memory_order_relaxed); }
  bool takes_stacks() const { return takes_stacks_.load(std::memory_order_relaxed); }
  // Returns the context of the user's recorder, if contexts of that level are wanted. The recorder runs without the
  // lock: it may be slow, or wait for another lock, whose holder waits for this one.
  Context gather_context(Contexts level) const;

  // Records an annotation of a live allocation. Returns false, having done nothing, if `ptr` is not an address of the
  // block.
  bool annotate(const Block& block, const void* ptr, const Context& annotation);
  // Changes that are observed meanwhile are marked as those of allocate_at.
  class Placing {
   public:
    Placing(Observers& observers, const Held& held) CACHALOT_HELD : observers_(observers) {
      holds(held);
      observers_.placing_ = true;
    }
    ~Placing() CACHALOT_NO_THREAD_SAFETY_ANALYSIS { observers_.placing_ = false; }
    Placing(const Placing&) = delete;
    Placing& operator=(const Placing&) = delete;

   private:
    Observers& observers_;
  };

  bool observes(Change::Action action, const Held& /*held*/) const CACHALOT_HELD { return history_.observes(action); }
  // Does nothing unless something observes the action.
  void observe(Change change, const Held& held) CACHALOT_HELD;
  static Change change_of(Change::Action action, const Block& block, const Context& context);
  std::vector<Change> entries(const Held& held) const CACHALOT_HELD;  // oldest first
  std::size_t metadata_bytes(const Held& held) const CACHALOT_HELD;

 private:
  void update(const Held& held) CACHALOT_HELD;

  HeapState& state_;
  History history_ CACHALOT_GUARDED_BY(device_lock);
  ContextRecorder recorder_ CACHALOT_GUARDED_BY(device_lock);
  Contexts recorded_contexts_ CACHALOT_GUARDED_BY(device_lock) = Contexts::never;          // for the recorder
  std::shared_ptr<SlowWorkObserver> slow_work_observer_ CACHALOT_GUARDED_BY(device_lock);  // null: no observer
  bool placing_ CACHALOT_GUARDED_BY(device_lock) = false;
  std::atomic<Contexts> contexts_{Contexts::never};
  std::atomic<bool> watched_{false};
  std::atomic<bool> takes_stacks_{false};  // the heap tells the watchers, not the front
};

CACHALOT_END
