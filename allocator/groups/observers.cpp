#include "cachalot/allocator_observers.h"

#include "base/check.h"
#include "base/format.h"
#include "groups/allocator_state.h"

CACHALOT_BEGIN

void AllocatorObservers::add_out_of_memory_observer(const OutOfMemoryObserver& observer) {
  for (const auto& allocator : state_.devices()) allocator->pressure.add_out_of_memory_observer(observer);
}

void AllocatorObservers::add_refusal_observer(const RefusalObserver& observer) {
  for (const auto& allocator : state_.devices()) allocator->pressure.add_refusal_observer(observer);
}

void AllocatorObservers::add_free_memory_callback(const FreeMemoryCallback& callback) {
  for (const auto& allocator : state_.devices()) allocator->pressure.add_free_memory_callback(callback);
}

void AllocatorObservers::add_change_tracker(const ChangeTracker& tracker) {
  for (const auto& allocator : state_.devices()) allocator->state.observers.add_change_tracker(tracker);
}

void AllocatorObservers::add_watcher(const std::shared_ptr<Watcher>& watcher) {
  CACHALOT_REQUIRE(watcher != nullptr, "add_watcher: the watcher is null; it must be an object");
  for (const auto& allocator : state_.devices()) allocator->state.observers.add_watcher(watcher);
}

void AllocatorObservers::remove_watcher(const Watcher* watcher) {
  for (const auto& allocator : state_.devices_if_own()) allocator->state.observers.remove_watcher(watcher);
}

void AllocatorObservers::set_slow_work_observer(const std::shared_ptr<SlowWorkObserver>& observer) {
  for (const auto& allocator : state_.devices()) allocator->state.observers.set_slow_work_observer(observer);
}

void AllocatorObservers::record_history(const HistoryOptions& history) {
  for (const auto& allocator : state_.devices()) allocator->state.observers.record_history(history);
}

void AllocatorObservers::annotate(const void* ptr, const Context& annotation) {
  state_.require_own_process();
  const auto [block, start] = state_.find(ptr);
  if (block != nullptr && state_.owner_of(*block).state.observers.annotate(*block, start, annotation)) return;
  throw InvalidArgument(formatted("annotateMemory: no live allocation found at pointer {}", ptr));
}

Context AllocatorObservers::context_of(const void* ptr) const {
  const auto [block, start] = state_.find(ptr);
  return block == nullptr ? nullptr : state_.owner_of(*block).state.context_of(*block, start);
}

bool AllocatorObservers::history_enabled() const {
  for (const auto& allocator : state_.devices()) {
    if (allocator->state.observers.history_enabled()) return true;
  }
  return false;
}

CACHALOT_END
