#include "heap/observers.h"

#include <algorithm>

#include "base/check.h"
#include "heap/heap_state.h"

CACHALOT_BEGIN

namespace {

// Takes an object out of those that a history has. Returns null when it is not one of them.
template <typename Object>
std::shared_ptr<Object> taken_out(std::vector<std::shared_ptr<Object>>& objects, const Object* object) {
  const auto found = std::ranges::find(objects, object, &std::shared_ptr<Object>::get);
  if (found == objects.end()) return nullptr;
  std::shared_ptr<Object> taken = std::move(*found);
  objects.erase(found);
  return taken;
}

}  // namespace

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

std::shared_ptr<Watcher> History::remove_watcher(const Watcher* watcher) { return taken_out(watchers_, watcher); }

std::shared_ptr<SegmentTracker> History::remove_segment_tracker(const SegmentTracker* tracker) {
  return taken_out(segment_trackers_, tracker);
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
  if (is_of_segment(change.action)) {
    for (const auto& tracker : segment_trackers_) tracker->on_segment(change);
  }
  for (const ChangeTracker& tracker : trackers_) tracker(change);
  if (tells_of_changes()) {
    tell(change, change.action == Change::Action::alloc ? AllocationStack::of_this_thread() : CallStack());
  }
  if (!enabled_ || std::find(skip_.begin(), skip_.end(), change.action) != skip_.end()) return;
  if (ring_.size() == ring_.capacity() && ring_.size() < max_entries_ && oldest_ == 0) {
    try {
      ring_.reserve(std::min(max_entries_, std::max<std::size_t>(16, 2 * ring_.size())));
    } catch (const std::bad_alloc&) {  // recording is half done: the ring stays as it is, and loses its oldest
    }
  }
  if (ring_.capacity() == 0) return;
  Change* entry = nullptr;
  if (ring_.size() < std::min(ring_.capacity(), max_entries_)) {
    entry = &ring_.emplace_back(change);
  } else {
    entry = &ring_[oldest_];
    *entry = change;
    oldest_ = (oldest_ + 1) % ring_.size();
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

void Observers::record_history(const HistoryOptions& history) {
  const DeviceLock lock(state_.mutex);
  history_.configure(history);
  const bool has_contexts = history.enabled && history.contexts != Contexts::never;
  recorder_ = has_contexts ? history.recorder : nullptr;
  recorded_contexts_ = has_contexts ? history.contexts : Contexts::never;
  update(lock);
  if (has_contexts) state_.set_mode(HeapState::kContexts, true, lock);
}

// Updates the switches. Watchers make allocations leave the fast path, as those with a context do.
void Observers::update(const Held& held) {
  const bool takes_stacks = history_.tells_of_changes();
  const auto least = takes_stacks ? Contexts::state : Contexts::never;
  contexts_.store(std::max(recorded_contexts_, least), std::memory_order_relaxed);
  takes_stacks_.store(takes_stacks, std::memory_order_relaxed);
  watched_.store(history_.watched(), std::memory_order_relaxed);
  state_.set_mode(HeapState::kObserved, history_.observes_all(), held);
  if (!state_.caches_are_open()) state_.drain_caches(held);  // their blocks would be of no use
}

void Observers::add_watcher(std::shared_ptr<Watcher> watcher) {
  const DeviceLock lock(state_.mutex);
  history_.add_watcher(std::move(watcher));
  update(lock);
}

void Observers::remove_watcher(const Watcher* watcher) {
  std::shared_ptr<Watcher> removed;  // and released without the lock
  const DeviceLock lock(state_.mutex);
  removed = history_.remove_watcher(watcher);
  update(lock);
}

void Observers::add_segment_tracker(std::shared_ptr<SegmentTracker> tracker, const Held& held) {
  holds(held);
  history_.add_segment_tracker(std::move(tracker));
}

void Observers::remove_segment_tracker(const SegmentTracker* tracker) {
  std::shared_ptr<SegmentTracker> removed;  // and released without the lock
  const DeviceLock lock(state_.mutex);
  removed = history_.remove_segment_tracker(tracker);
}

void Observers::set_slow_work_observer(std::shared_ptr<SlowWorkObserver> observer) {
  const DeviceLock lock(state_.mutex);  // releases the old one after the lock
  std::swap(slow_work_observer_, observer);
}

std::shared_ptr<SlowWorkObserver> Observers::slow_work_observer() const {
  const DeviceLock lock(state_.mutex);
  return slow_work_observer_;
}

void Observers::watch_through_front() {
  const DeviceLock lock(state_.mutex);
  history_.only_tell();
}

void Observers::tell_watchers(Change change, const CallStack& stack) {
  change.device = state_.index;
  change.time_us = state_.device->clock_us();
  const DeviceLock lock(state_.mutex);
  history_.tell(change, stack);
}

bool Observers::history_enabled() const {
  const DeviceLock lock(state_.mutex);
  return history_.enabled();
}

void Observers::add_change_tracker(ChangeTracker tracker) {
  CACHALOT_REQUIRE(tracker, "a change tracker must be callable");
  const DeviceLock lock(state_.mutex);
  history_.add_tracker(std::move(tracker));
  state_.set_mode(HeapState::kObserved, true, lock);
}

Context Observers::gather_context(Contexts level) const {
  ContextRecorder recorder;
  {
    const DeviceLock lock(state_.mutex);
    if (contexts() >= level) recorder = recorder_;
  }
  return recorder ? recorder() : nullptr;
}

bool Observers::annotate(const Block& block, const void* ptr, const Context& annotation) {
  const Context context = gather_context(Contexts::alloc);
  const DeviceLock lock(state_.mutex);
  if (!HeapState::is_live(block, ptr)) return false;
  Change change = change_of(Change::Action::annotate, block, context);
  change.bytes = block.requested_bytes();
  change.annotation = annotation;
  observe(std::move(change), lock);
  return true;
}

Change Observers::change_of(Change::Action action, const Block& block, const Context& context) {
  const BlockPool& pool = block.arena->pool;
  const bool of_segment = action == Change::Action::segment_alloc;
  return {.action = action,
          .pool_kind = pool.kind(),
          .address = block.address,
          .bytes = of_segment ? block.size() : block.requested,
          .block_bytes = of_segment ? 0 : block.size(),
          .stream = block.arena->stream.handle,
          .pool = pool.id(),
          .context = context};
}

void Observers::observe(Change change, const Held& held) {
  if (!observes(change.action, held)) return;
  change.device = state_.index;
  change.time_us = state_.device->clock_us();
  if (change.action != Change::Action::annotate) change.annotation = history_.annotation();
  change.is_placed = placing_;
  history_.record(change);
}

std::vector<Change> Observers::entries(const Held& /*held*/) const { return history_.entries(); }
std::size_t Observers::metadata_bytes(const Held& /*held*/) const { return history_.metadata_bytes(); }

CACHALOT_END
