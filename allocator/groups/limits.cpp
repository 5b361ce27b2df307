#include "cachalot/allocator_limits.h"

#include <utility>

#include "groups/allocator_state.h"

CACHALOT_BEGIN

namespace {

std::optional<std::size_t> unless_none(std::size_t bytes) {
  return bytes == Ledger::kNoLimit ? std::nullopt : std::optional(bytes);
}

}  // namespace

void AllocatorLimits::set_limit(const MemoryLimit& limit, int device) { state_.at(device).set_limit(limit); }

void AllocatorLimits::set_soft_limit(const MemoryLimit& limit, SoftLimitCallback callback, int device) {
  state_.at(device).limits.set_soft(limit, std::move(callback));
}

LimitFigures AllocatorLimits::limit_figures(int device) const {
  DeviceAllocator& allocator = state_.at(device);
  LimitFigures figures;
  figures.device = device;
  figures.reservation_bytes = allocator.level.reserved_unused();
  const DeviceLock lock(allocator.state.mutex);
  const Ledger& ledger = allocator.state.ledger;
  figures.limit_bytes = unless_none(ledger.limit(lock));
  figures.set_by = allocator.limits.holding(lock);
  figures.soft_limit_bytes = unless_none(ledger.soft_limit(lock));
  figures.held_bytes = ledger.held_bytes(lock);
  return figures;
}

std::size_t AllocatorLimits::trim(std::size_t keep_bytes, int device) {
  return state_.at(device).level.trim(keep_bytes);
}

void AllocatorLimits::reserve(std::size_t bytes, int device) { state_.at(device).level.reserve(bytes); }

CACHALOT_END
