#include "observe/history.h"

#include <algorithm>

#include "base/check.h"
#include "observe/allocation_stack.h"

CACHALOT_BEGIN

void History::configure(const HistoryOptions& options) {
  using Contexts = HistoryOptions::Contexts;
  CACHALOT_REQUIRE(!options.enabled || options.max_entries >= 1, "history of {} entries: it must keep at least 1",
                   options.max_entries);
  CACHALOT_REQUIRE(!options.enabled || options.contexts == Contexts::never || options.recorder,
                   "history with contexts needs a recorder that makes them");
  const bool resized = options.max_entries != max_entries_;
  enabled_ = options.enabled;
  keeps_contexts_ = options.contexts >= Contexts::alloc;
  keeps_free_contexts_ = options.contexts == Contexts::all;
  annotate_ = options.enabled ? options.annotate : nullptr;
  skip_ = options.skip;
  if (!enabled_ || options.clear) clear();
  if (enabled_ && resized) {
    std::vector<Change> kept = entries();
    if (kept.size() > options.max_entries)
      kept.erase(kept.begin(), kept.end() - static_cast<std::ptrdiff_t>(options.max_entries));
    ring_ = std::move(kept);
    oldest_ = 0;
    max_entries_ = options.max_entries;
  }
}

std::shared_ptr<Watcher> History::remove_watcher(const Watcher* watcher) {
  const auto found = std::ranges::find(watchers_, watcher, &std::shared_ptr<Watcher>::get);
  if (found == watchers_.end()) return nullptr;
  std::shared_ptr<Watcher> removed = std::move(*found);
  watchers_.erase(found);
  return removed;
}

void History::tell(const Change& change, const CallStack& stack) const {
  for (const auto& watcher : watchers_) watcher->on_change(change, stack);
}

void History::clear() {
  ring_.clear();
  ring_.shrink_to_fit();
  oldest_ = 0;
}

void History::record(const Change& change) {
  for (const ChangeTracker& tracker : trackers_) tracker(change);
  if (tells_of_changes()) {
    tell(change, change.action == Change::Action::alloc ? AllocationStack::of_this_thread() : CallStack());
  }
  if (!enabled_ || std::find(skip_.begin(), skip_.end(), change.action) != skip_.end()) return;
  Change* entry = nullptr;
  if (ring_.size() < max_entries_) {
    entry = &ring_.emplace_back(change);
  } else {
    entry = &ring_[oldest_];
    *entry = change;
    oldest_ = (oldest_ + 1) % max_entries_;
  }
  const bool is_free =
      change.action == Change::Action::free_requested || change.action == Change::Action::free_completed;
  if (!(is_free ? keeps_free_contexts_ : keeps_contexts_)) entry->context.reset();
}

std::vector<Change> History::entries() const {
  std::vector<Change> entries;
  entries.reserve(ring_.size());
  const auto oldest = ring_.begin() + static_cast<std::ptrdiff_t>(oldest_);
  entries.insert(entries.end(), oldest, ring_.end());
  entries.insert(entries.end(), ring_.begin(), oldest);
  return entries;
}

CACHALOT_END
