// Where memory lay at a moment of a history: segments, the live blocks in them, and what is free between those.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "cachalot/options.h"
#include "tools/analysis/timeline.h"
#include "tools/history/allocations.h"
#include "tools/history/history.h"

namespace cachalot::tools {

struct LiveBlock {
  std::uint32_t allocation = 0;
  std::uint64_t bytes = 0;  // with what was too small to be split off
};

struct SegmentAt {
  Address address = 0;
  std::uint64_t bytes = 0;
  std::uint16_t stream = 0;
  std::uint16_t pool = 0;
  bool is_small = false;
  bool is_expandable = false;
  std::vector<LiveBlock> live{};  // by address
  std::uint64_t live_bytes = 0;   // of the blocks
  std::uint64_t free_bytes = 0;
  std::uint64_t largest_free_bytes = 0;
  std::size_t free_pieces = 0;
};

// Returns the segments after `peak.event` events, by address. `options` are those that PyTorch had: they tell which remainders of
// blocks are split off. Empty where the file has no segments.
std::vector<SegmentAt> layout_at(const DeviceHistory& device, std::span<const Allocation> allocations,
                                 std::span<const std::uint64_t> blocks, const Peak& peak, const Options& options);

}  // namespace cachalot::tools
