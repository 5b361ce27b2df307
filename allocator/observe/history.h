// Who sees the Changes: the ring of the last ones, the trackers, and the watchers. Values are built only while someone looks.
// Not thread-safe: guarded by the mutex of its DeviceAllocator.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <vector>

#include "cachalot/change.h"
#include "cachalot/history.h"
#include "cachalot/watcher.h"

CACHALOT_BEGIN

class History {
 public:
  // Throws InvalidArgument, having changed nothing.
  void configure(const HistoryOptions& options);
  void add_tracker(ChangeTracker tracker) { trackers_.push_back(std::move(tracker)); }

  void add_watcher(std::shared_ptr<Watcher> watcher) { watchers_.push_back(std::move(watcher)); }
  // Null when it is not one of them.
  std::shared_ptr<Watcher> remove_watcher(const Watcher* watcher);
  // From now on watchers hear of what they are told, not of what is recorded.
  void only_tell() { only_tell_ = true; }
  void tell(const Change& change, const CallStack& stack) const;

  bool enabled() const { return enabled_; }
  bool watched() const { return !watchers_.empty(); }
  bool tells_of_changes() const { return watched() && !only_tell_; }
  bool observes() const { return enabled_ || !trackers_.empty() || tells_of_changes(); }

  Context annotation() const { return annotate_ ? annotate_() : nullptr; }
  void record(const Change& change);    // and tells the watchers
  std::vector<Change> entries() const;  // oldest first
  std::size_t metadata_bytes() const { return ring_.capacity() * sizeof(Change); }

 private:
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
  std::vector<std::shared_ptr<Watcher>> watchers_;
  bool only_tell_ = false;
};

CACHALOT_END
