// Observers are those who see the changes of one device's heap: the history, trackers and watchers; and what allocations do
// for them, which makes allocations leave the fast path.
//
// Thread safety: functions without a token lock by themselves; the flags are read without a lock.
#pragma once

#include <atomic>
#include <cstddef>
#include <memory>
#include <vector>

#include "base/device_lock.h"
#include "blocks/block.h"
#include "cachalot/change.h"
#include "cachalot/history.h"
#include "observe/history.h"

namespace cachalot {

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
  void record_history(const HistoryOptions& history);
  bool history_enabled() const;

  bool is_watched() const { return watched_.load(std::memory_order_relaxed); }
  // With the guard on: watchers hear of its blocks, by tell_watchers, and no more of the heap's.
  void watch_through_guard();
  void tell_watchers(Change change, const CallStack& stack);

  // Which calls gather a context; also `state` where watchers want the stacks of allocations.
  Contexts contexts() const { return contexts_.load(std::memory_order_relaxed); }
  bool takes_stacks() const { return takes_stacks_.load(std::memory_order_relaxed); }
  // What the user's recorder says, if contexts of that level are wanted. It runs without the lock: it may be slow, or wait
  // for another lock that a holder of ours wants.
  Context gather_context(Contexts level) const;

  // Nothing while nobody observes.
  void observe(Change change, const Held& held) CACHALOT_HELD;
  static Change change_of(Change::Action action, const Block& block, const Context& context);
  std::vector<Change> entries(const Held& held) const CACHALOT_HELD;  // oldest first
  std::size_t metadata_bytes(const Held& held) const CACHALOT_HELD;

 private:
  void update(const Held& held) CACHALOT_HELD;

  HeapState& state_;
  History history_ CACHALOT_GUARDED_BY(device_lock);
  ContextRecorder recorder_ CACHALOT_GUARDED_BY(device_lock);
  Contexts recorded_contexts_ CACHALOT_GUARDED_BY(device_lock) = Contexts::never;  // for the recorder
  std::atomic<Contexts> contexts_{Contexts::never};
  std::atomic<bool> watched_{false};
  std::atomic<bool> takes_stacks_{false};  // it is the heap that tells the watchers
};

}  // namespace cachalot
