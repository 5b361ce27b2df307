#include "heap/uncached.h"

#include <optional>
#include <utility>

#include "base/format.h"
#include "cachalot/errors.h"

CACHALOT_BEGIN

void Uncached::set_caching_enabled(bool enabled) {
  const DeviceLock lock(state_.mutex);
  state_.set_mode(HeapState::kBypassed, !enabled, lock);
}

void* Uncached::allocate(std::size_t bytes, Held& held, Alignment alignment) {
  const auto ask = [&] {
    holds(held);
    const Unlocked unlocked(held);
    return ((*state_.device).*malloc_)(bytes + alignment.slack());
  };
  std::optional<Address> address = ask();
  if (!address && pressure_.run_last_resorts(held)) address = ask();
  while (!address && pressure_.evict(nullptr, kAnyPriority, held) != 0) address = ask();
  if (!address) {
    throw OutOfMemory(formatted("CUDA out of memory. Tried to allocate {} on GPU {} with caching off.",
                                format_bytes(bytes), state_.index),
                      state_.index, bytes);
  }
  const Address begin = alignment.first_from(*address);
  live_.emplace(begin, *address);
  return as_pointer(begin);
}

bool Uncached::deallocate(const void* ptr) {
  const DeviceLock lock(state_.mutex);
  auto entry = live_.extract(as_address(ptr));
  if (entry.empty()) return false;
  try {
    const Unlocked<Held> unlocked(lock);
    state_.device->free(entry.mapped());
  } catch (...) {
    live_.insert(std::move(entry));
    throw;
  }
  return true;
}

bool Uncached::contains(const void* ptr) const {
  const DeviceLock lock(state_.mutex);
  return live_.contains(as_address(ptr));
}

CACHALOT_END
