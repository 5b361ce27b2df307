/// @file
/// The guard of an allocator.
#pragma once

#include "cachalot/require_cpp17.h"

#include <cstddef>
#include <cstdint>
#include <vector>

#include "cachalot/allocator_group.h"
#include "cachalot/guard.h"

CACHALOT_BEGIN_API

/// AllocatorGuard are the functions of a CachingAllocator that control its guard (guard.h).
///
/// The guard exists in allocators made with guard:True or debug:True. With the guard on, statistics
/// and snapshots describe the heap's own blocks, which start 512 bytes before the user's and end
/// behind them; blocks in quarantine count as allocated. A free waits for the streams that use
/// the block, which must exist until then. With debug:True,guard:False none of this holds.
class AllocatorGuard : private AllocatorGroup {
 public:
  /// Sets the handler called for each report. Empty (the default): print to stderr. Does nothing
  /// without a guard.
  void set_guard_handler(GuardHandler handler);
  /// Returns the number of reports so far; 0 without a guard.
  std::uint64_t guard_reports() const;
  /// Verifies all live blocks and all blocks in quarantine now. Returns every report since the last
  /// call, those of frees and of mistakes included; at most the newest 1,000.
  /// Throws InvalidArgument without a guard, and while a graph is captured.
  /// Blocks: until the streams that use the blocks are done.
  std::vector<GuardReport> check_guard();
  /// Returns the bytes in quarantine; 0 without a guard.
  std::size_t guard_quarantine_bytes(int device = 0) const;

 protected:
  /// Makes the group for the allocator with this state.
  explicit AllocatorGuard(AllocatorState& state) : AllocatorGroup(state) {}
  ~AllocatorGuard() = default;
};

CACHALOT_END_API
