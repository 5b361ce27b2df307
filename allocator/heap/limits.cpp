#include "heap/limits.h"

#include <utility>

#include "base/check.h"
#include "base/format.h"

CACHALOT_BEGIN

void Limits::set_fraction(double fraction, Setter setter) {
  HeldLimit::require_fraction(fraction);
  const std::size_t total = state_.device->properties().total_bytes;
  const DeviceLock lock(state_.mutex);
  state_.ledger.held_limit(lock).set_fraction(fraction, total);
  fraction_setter_ = setter;
  state_.update_aging(lock);
}

void Limits::set(const MemoryLimit& limit, Setter setter) {
  const DeviceLock lock(state_.mutex);
  if (limit.base == MemoryLimit::Base::free && setter == Setter::option) {
    set_measured(limit, HeldLimit::kNone, setter, lock);
    is_pending_ = true;
  } else {
    set_measured(limit, measured(limit, lock), setter, lock);
  }
}

void Limits::set_measured(const MemoryLimit& limit, std::size_t bytes, Setter setter, const Held& held) {
  limit_ = limit;
  limit_setter_ = setter;
  is_pending_ = false;
  state_.ledger.held_limit(held).set_bytes(bytes);
  state_.update_aging(held);
}

// Asks the device only for what the limit is measured from.
std::size_t Limits::measured(const MemoryLimit& limit, Held& held) {
  MemoryInfo memory;
  {
    const Unlocked unlocked(held);
    if (limit.base == MemoryLimit::Base::total) memory.total_bytes = state_.device->properties().total_bytes;
    if (limit.base == MemoryLimit::Base::free) memory = state_.device->memory_info();
  }
  return limit.in_bytes(memory.total_bytes, memory.free_bytes, state_.ledger.held_bytes(held));
}

void Limits::measure(Held& held) {
  if (!is_pending_) return;
  const MemoryLimit limit = limit_;
  const std::size_t bytes = measured(limit, held);
  if (is_pending_ && limit_ == limit) set_measured(limit, bytes, limit_setter_, held);  // no other one was set since
}

void Limits::set_soft(const MemoryLimit& limit, SoftLimitCallback callback) {
  CACHALOT_REQUIRE(callback || limit.base == MemoryLimit::Base::none,
                   "the soft limit {} has no callback; it must be callable", to_string(limit));
  const DeviceLock lock(state_.mutex);
  const std::size_t bytes = measured(limit, lock);
  state_.ledger.set_soft_limit(bytes, lock);
  std::swap(callback_, callback);
}

void Limits::tell_if_crossed(Held& held) {
  if (!state_.ledger.take_crossing(held) || !callback_) return;
  const SoftLimitCallback callback = callback_;
  const SoftLimitReport report{state_.index, state_.ledger.held_bytes(held), state_.ledger.soft_limit(held)};
  const Unlocked unlocked(held);
  callback(report);
}

std::string Limits::holding(const Held& held) const {
  if (state_.ledger.limit(held) == HeldLimit::kNone) return "";
  if (state_.ledger.held_limit(held).is_fraction()) {
    const double fraction = state_.ledger.held_limit(held).fraction();
    return fraction_setter_ == Setter::option ? formatted("per_process_memory_fraction:{}", fraction)
                                              : formatted("set_memory_fraction({})", fraction);
  }
  const std::string limit = to_string(limit_);
  return limit_setter_ == Setter::option ? formatted("limit:{}", limit) : formatted("set_limit(\"{}\")", limit);
}

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

void MemoryPressure::add_last_resort(FreeMemoryCallback last_resort) {
  CACHALOT_REQUIRE(last_resort, "a last resort must be callable");
  const DeviceLock lock(state_.mutex);
  last_resorts_.push_back(std::move(last_resort));
}

void MemoryPressure::set_evictor(Evictor evictor) {
  const DeviceLock lock(state_.mutex);
  evictor_ = std::move(evictor);
}

std::size_t MemoryPressure::evict(const PrivatePool* pool, int priority, Held& held) {
  if (!evictor_ || state_.capturing(held)) return 0;
  const Evictor evictor = evictor_;
  const Unlocked unlocked(held);
  return evictor(pool, priority);
}

bool MemoryPressure::run_callbacks(Held& held) { return run(callbacks_, held); }
bool MemoryPressure::run_last_resorts(Held& held) { return run(last_resorts_, held); }

// Calls copies: one of the functions may add others.
bool MemoryPressure::run(const Vector<FreeMemoryCallback>& functions, Held& held) {
  if (functions.empty()) return false;
  // NOLINTNEXTLINE(performance-unnecessary-copy-initialization): `functions` may grow while the lock is released
  const Vector<FreeMemoryCallback> callbacks = functions;
  const Unlocked unlocked(held);
  bool freed = false;
  for (const FreeMemoryCallback& callback : callbacks) freed |= callback();
  return freed;
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
