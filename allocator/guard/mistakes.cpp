// What callers do wrong, as the guard knows it.
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/format.h"
#include "device/addresses.h"
#include "guard/guard.h"

namespace cachalot {

// --- blocks ---------------------------------------------------------------------------------------------------------

std::optional<Guard::Sighting> Guard::sight(const void* ptr) const {
  const Address at = as_address(ptr);
  const auto holds = [&](const GuardedBlock& block) { return block.contains(at); };
  const std::lock_guard lock(mutex_);
  if (const auto exact = live_.find(at); exact != live_.end()) return Sighting{exact->second, at};
  const auto live = std::ranges::find_if(live_, [&](const auto& entry) { return holds(entry.second); });
  if (live != live_.end()) return Sighting{live->second, at};
  if (const GuardedBlock* const freed = freed_.find(at)) return Sighting{*freed, at};
  const auto quarantined = std::ranges::find_if(quarantine_, holds);
  if (quarantined != quarantine_.end()) return Sighting{*quarantined, at};
  return std::nullopt;
}

std::string Guard::Sighting::place() const {
  const std::string name = block.freed ? formatted("the block of {} bytes at {:#x}", block.bytes, block.address)
                                       : formatted("the allocation of {} bytes at {:#x}", block.bytes, block.address);
  const std::string where = offset() == 0 ? formatted("it is {}", name)
                            : offset() > 0
                                ? formatted("it lies inside {}, {} bytes behind its beginning", name, offset())
                                : formatted("it lies inside {}, {} bytes before its beginning", name, -offset());
  return block.freed ? where + ", which was already freed" : where;
}

std::string Guard::Sighting::history() const {
  std::string text = formatted("allocated as call {} by thread {}", block.allocated.number, block.allocated.thread);
  if (block.freed) text += formatted(", freed as call {} by thread {}", block.freed->number, block.freed->thread);
  return text;
}

void Guard::report_mistake(GuardReport::Kind kind, const void* ptr, std::string message) {
  if (!duties_.debug) return;
  const std::optional<Sighting> sighting = sight(ptr);
  GuardReport made;
  if (sighting) {
    made = sighting->block.report(kind, sighting->offset(), device_.index());
  } else {
    made = {.kind = kind, .device = cachalot::describe(heap_.state, ptr).empty() ? -1 : device_.index(), .address = as_address(ptr)};
  }
  made.message = std::move(message);
  report(std::move(made));
}

void Guard::report(GuardReport made) {
  made.mistake = mistake_now();
  log_.add({std::move(made)});
}

// --- private pools --------------------------------------------------------------------------------------------------

void Guard::note_users(PoolId pool) {
  if (!duties_.debug) return;
  const bool has_users = heap_.pools.pool_use_count(pool) > 0;
  const GuardCall now = mistake_now();
  const std::lock_guard lock(mutex_);
  released_pools_.erase(pool);
  if (has_users) return;
  released_pools_.emplace(pool, now);
  if (released_pools_.size() <= kPoolsKept) return;
  const auto number = [](const auto& entry) { return entry.second.number; };
  released_pools_.erase(std::ranges::min_element(released_pools_, {}, number));
}

void Guard::report_released_pool(PoolId pool, std::string_view message) {
  if (!duties_.debug || heap_.pools.pool_use_count(pool) > 0) return;
  GuardReport made{.kind = GuardReport::Kind::released_pool, .device = device_.index()};
  made.message = formatted("{}: pool ({}, {}) was released by all its users", message, pool.first, pool.second);
  {
    const std::lock_guard lock(mutex_);
    const auto released = released_pools_.find(pool);
    if (released == released_pools_.end()) return;
    made.freed = released->second;
  }
  report(std::move(made));
}

}  // namespace cachalot
