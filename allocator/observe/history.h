// Who sees the Changes: the ring of the last ones, and the trackers. Values are built only while someone looks.
// Not thread-safe: guarded by the mutex of its DeviceAllocator.
#pragma once

#include <cstddef>
#include <functional>
#include <vector>

#include "cachalot/change.h"
#include "cachalot/history.h"

namespace cachalot {

class History {
 public:
  // Throws InvalidArgument, having changed nothing.
  void configure(const HistoryOptions& options);
  void add_tracker(ChangeTracker tracker) { trackers_.push_back(std::move(tracker)); }

  bool enabled() const { return enabled_; }
  bool observes() const { return enabled_ || !trackers_.empty(); }

  Context annotation() const { return annotate_ ? annotate_() : nullptr; }
  void record(const Change& change);
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
};

}  // namespace cachalot
