#include "heap/uncached.h"

#include <optional>

#include "base/format.h"
#include "cachalot/errors.h"

CACHALOT_BEGIN

void Uncached::set_caching_enabled(bool enabled) {
  const DeviceLock lock(state_.mutex);
  state_.set_mode(HeapState::kBypassed, !enabled, lock);
}

void* Uncached::allocate(std::size_t bytes, Held& held) {
  const auto ask = [&] {
    holds(held);
    const Unlocked unlocked(held);
    return state_.device->malloc(bytes);
  };
  std::optional<Address> address = ask();
  if (!address && pressure_.run_last_resort(held)) address = ask();
  if (!address) {
    throw OutOfMemory(formatted("CUDA out of memory. Tried to allocate {} on GPU {} with caching off.",
                                format_bytes(bytes), state_.index),
                      state_.index, bytes);
  }
  live_.insert(*address);
  return as_pointer(*address);
}

bool Uncached::deallocate(const void* ptr) {
  const DeviceLock lock(state_.mutex);
  if (live_.erase(as_address(ptr)) == 0) return false;
  try {
    const Unlocked<Held> unlocked(lock);
    state_.device->free(as_address(ptr));
  } catch (...) {
    live_.insert(as_address(ptr));
    throw;
  }
  return true;
}

bool Uncached::contains(const void* ptr) const {
  const DeviceLock lock(state_.mutex);
  return live_.contains(as_address(ptr));
}

CACHALOT_END
