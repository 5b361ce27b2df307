#include "tools/analysis/layout.h"

#include <algorithm>

#include "policy/torch_policy.h"
#include "tools/analysis/memory_ranges.h"

namespace cachalot::tools {
namespace {

// Returns the segments after so many events. Neighbours of one expandable segment are one.
std::vector<SegmentAt> segments_after(const DeviceHistory& device, std::size_t events) {
  std::vector<MemoryRange> held = recorded_ranges(device);
  std::erase_if(held, [&](const MemoryRange& range) {
    return (range.begin != Allocation::kBefore && range.begin >= events) || range.end < events;
  });
  std::ranges::sort(held, {}, &MemoryRange::address);
  std::vector<SegmentAt> segments;
  for (const MemoryRange& range : held) {
    SegmentAt* const last = segments.empty() ? nullptr : &segments.back();
    if (last != nullptr && last->is_expandable && range.is_expandable && last->address + last->bytes == range.address &&
        last->stream == range.stream && last->pool == range.pool && last->is_small == range.is_small) {
      last->bytes += range.bytes;
    } else {
      segments.push_back({.address = range.address,
                          .bytes = range.bytes,
                          .stream = range.stream,
                          .pool = range.pool,
                          .is_small = range.is_small,
                          .is_expandable = range.is_expandable});
    }
  }
  return segments;
}

void add_free(SegmentAt& segment, std::uint64_t bytes) {
  if (bytes == 0) return;
  ++segment.free_pieces;
  segment.free_bytes += bytes;
  segment.largest_free_bytes = std::max(segment.largest_free_bytes, bytes);
}

// Adds what lies between a block and the next one: what PyTorch does not split off is the block's.
void add_gap(SegmentAt& segment, std::uint64_t gap, std::uint64_t requested, const Options& options) {
  LiveBlock& block = segment.live.back();
  const PoolKind kind = segment.is_small ? PoolKind::small : PoolKind::large;
  const std::uint64_t rounded =
      std::max<std::uint64_t>(block.bytes, round_size(std::max<std::uint64_t>(1, requested), options));
  const std::uint64_t whole = block.bytes + gap;
  const bool is_split = segment.is_expandable || should_split(kind, whole, std::min(rounded, whole), options);
  const std::uint64_t bytes = is_split ? std::min(rounded, whole) : whole;
  segment.live_bytes += bytes - block.bytes;
  block.bytes = bytes;
  add_free(segment, whole - bytes);
}

}  // namespace

std::vector<SegmentAt> layout_at(const DeviceHistory& device, std::span<const Allocation> allocations,
                                 std::span<const std::uint64_t> blocks, const Peak& peak, const Options& options) {
  std::vector<SegmentAt> segments = segments_after(device, peak.event);
  std::vector<std::uint32_t> live = peak.live;
  std::ranges::sort(live, {}, [&](std::uint32_t i) { return allocations[i].address; });
  auto next = live.begin();
  for (SegmentAt& segment : segments) {
    const Address end = segment.address + segment.bytes;
    Address at = segment.address;
    while (next != live.end() && allocations[*next].address < segment.address) ++next;
    for (; next != live.end() && allocations[*next].address < end; ++next) {
      const Address address = allocations[*next].address;
      if (address < at) continue;  // blocks that overlap: the file is damaged
      if (!segment.live.empty()) {
        add_gap(segment, address - at, allocations[segment.live.back().allocation].bytes, options);
      } else {
        add_free(segment, address - at);
      }
      const std::uint64_t bytes = std::min(blocks[*next], end - address);
      segment.live.push_back({.allocation = *next, .bytes = bytes});
      segment.live_bytes += bytes;
      at = address + bytes;
    }
    if (segment.live.empty()) {
      add_free(segment, segment.bytes);
    } else {
      add_gap(segment, end - at, allocations[segment.live.back().allocation].bytes, options);
    }
  }
  return segments;
}

}  // namespace cachalot::tools
