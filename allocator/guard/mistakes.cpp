#include "guard/mistakes.h"

#include <algorithm>
#include <utility>

#include "base/format.h"
#include "device/addresses.h"
#include "inspection/blocks.h"

CACHALOT_BEGIN

void GuardMistakes::report(GuardReport::Kind kind, const void* ptr, const std::optional<GuardSighting>& sighting,
                           std::string message) {
  const int device = heap_.state.device->index();
  GuardReport report;
  if (sighting) {
    report = sighting->block.report(kind, sighting->offset(), device);
  } else {
    report = {
        .kind = kind, .device = cachalot::describe(heap_.state, ptr).empty() ? -1 : device, .address = as_address(ptr)};
  }
  report.message = std::move(message);
  add(std::move(report));
}

void GuardMistakes::add(GuardReport report) {
  report.mistake = calls_.mistake();
  log_.add({std::move(report)});
}

void GuardMistakes::note_users(PoolId pool) {
  const bool has_users = heap_.pools.pool_use_count(pool) > 0;
  const GuardCall now = calls_.mistake();
  const Lock lock(mutex_);
  released_pools_.erase(pool);
  if (has_users) return;
  released_pools_.emplace(pool, now);
  if (released_pools_.size() <= kPoolsKept) return;
  const auto number = [](const auto& entry) { return entry.second.number; };
  released_pools_.erase(std::ranges::min_element(released_pools_, {}, number));
}

void GuardMistakes::report_released_pool(PoolId pool, std::string_view message) {
  if (heap_.pools.pool_use_count(pool) > 0) return;
  GuardReport report{.kind = GuardReport::Kind::released_pool, .device = heap_.state.device->index()};
  report.message = formatted("{}: pool ({}, {}) was released by all its users", message, pool.first, pool.second);
  {
    const Lock lock(mutex_);
    const auto released = released_pools_.find(pool);
    if (released == released_pools_.end()) return;
    report.freed = released->second;
  }
  add(std::move(report));
}

CACHALOT_END
