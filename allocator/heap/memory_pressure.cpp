#include "heap/memory_pressure.h"

#include <utility>

#include "base/check.h"

CACHALOT_BEGIN

void MemoryPressure::add_out_of_memory_observer(OutOfMemoryObserver observer) {
  CACHALOT_REQUIRE(observer, "an out-of-memory observer must be callable");
  const DeviceLock lock(state_.mutex);
  observers_.push_back(std::move(observer));
}

void MemoryPressure::add_refusal_observer(RefusalObserver observer) {
  CACHALOT_REQUIRE(observer, "a refusal observer must be callable");
  const DeviceLock lock(state_.mutex);
  refusal_observers_.push_back(std::move(observer));
}

void MemoryPressure::add_free_memory_callback(FreeMemoryCallback callback) {
  CACHALOT_REQUIRE(callback, "a free-memory callback must be callable");
  const DeviceLock lock(state_.mutex);
  callbacks_.push_back(std::move(callback));
}

void MemoryPressure::set_last_resort(FreeMemoryCallback last_resort) {
  const DeviceLock lock(state_.mutex);
  last_resort_ = std::move(last_resort);
}

bool MemoryPressure::run_callbacks(Held& held) {
  if (callbacks_.empty()) return false;
  const std::vector<FreeMemoryCallback> callbacks = callbacks_;
  const Unlocked unlocked(held);
  bool freed = false;
  for (const FreeMemoryCallback& callback : callbacks) freed |= callback();
  return freed;
}

bool MemoryPressure::run_last_resort(Held& held) {
  if (!last_resort_) return false;
  const FreeMemoryCallback last_resort = last_resort_;
  const Unlocked unlocked(held);
  return last_resort();
}

void MemoryPressure::tell(const OutOfMemoryReport& report, Held& held) {
  const std::vector<OutOfMemoryObserver> observers = observers_;
  const Unlocked unlocked(held);
  for (const OutOfMemoryObserver& observer : observers) observer(report);
}

void MemoryPressure::tell_of_refusal(const RefusalReport& report, Held& held) {
  const std::vector<RefusalObserver> observers = refusal_observers_;
  const Unlocked unlocked(held);
  for (const RefusalObserver& observer : observers) observer(report);
}

CACHALOT_END
