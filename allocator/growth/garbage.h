// Returns how much memory garbage collection would return now: it keeps held memory under a part of the limit, but not
// under what a reservation keeps.
#pragma once

#include <algorithm>
#include <cstddef>

#include "heap/heap_state.h"

CACHALOT_BEGIN

CACHALOT_REQUIRES(device_lock)
inline std::size_t garbage_bytes(const HeapState& state, const Held& held) {
  const double part = state.options.garbage_collection_threshold;
  const auto most = static_cast<std::size_t>(part * static_cast<double>(state.ledger.limit(held)));
  const std::size_t floor = std::max(most, state.ledger.kept_bytes(held));
  const std::size_t held_bytes = state.ledger.held_bytes(held);
  return held_bytes > floor ? held_bytes - floor : 0;
}

CACHALOT_END
