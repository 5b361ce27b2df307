#include "tools/analysis/layout.h"

#include <algorithm>
#include <iterator>
#include <limits>
#include <tuple>
#include <utility>

#include "policy/torch_policy.h"

namespace cachalot::tools {
namespace {

using Action = HistoryEvent::Action;

Address end_of(Address address, std::uint64_t bytes) {
  constexpr Address kLast = std::numeric_limits<Address>::max();
  return bytes > kLast - address ? kLast : address + bytes;  // of a hostile file
}

}  // namespace

void MemoryRanges::put(MemoryRange range, Address begin, Address end) {
  if (begin >= end) return;
  range.address = begin;
  range.bytes = end - begin;
  open_.insert_or_assign(begin, range);
}

void MemoryRanges::finish(MemoryRange range, Address begin, Address end, std::uint32_t event) {
  range.address = begin;
  range.bytes = end - begin;
  (direction_ == Direction::forwards ? range.end : range.begin) = event;
  if (range.begin != range.end) closed_.push_back(range);
}

void MemoryRanges::open(const MemoryRange& range, std::uint32_t event) {
  close(range.address, range.bytes, event);
  put(range, range.address, end_of(range.address, range.bytes));
}

void MemoryRanges::close(Address address, std::uint64_t bytes, std::uint32_t event) {
  const Address end = end_of(address, bytes);
  auto next = open_.upper_bound(address);
  if (next != open_.begin() && end_of(std::prev(next)->first, std::prev(next)->second.bytes) > address) --next;
  while (next != open_.end() && next->first < end) {
    const MemoryRange range = next->second;
    const Address range_end = end_of(range.address, range.bytes);
    next = open_.erase(next);
    finish(range, std::max(range.address, address), std::min(range_end, end), event);
    put(range, range.address, address);  // the rest of it on both sides
    put(range, end, range_end);
  }
}

std::vector<MemoryRange> MemoryRanges::take() {
  for (const auto& [address, range] : open_) closed_.push_back(range);
  open_.clear();
  std::ranges::sort(closed_, {}, [](const MemoryRange& range) {
    return std::tuple(range.begin == Allocation::kBefore ? 0 : std::uint64_t{range.begin} + 1, range.address,
                      range.end);
  });
  return std::exchange(closed_, {});
}

std::vector<MemoryRange> recorded_ranges(const DeviceHistory& device) {
  MemoryRanges ranges(MemoryRanges::Direction::backwards);
  for (const HistorySegment& segment : device.segments) {
    ranges.open({.address = segment.address,
                 .bytes = segment.bytes,
                 .stream = segment.stream,
                 .pool = segment.pool,
                 .is_small = segment.is_small,
                 .is_expandable = segment.is_expandable},
                Allocation::kNever);
  }
  for (std::size_t i = device.events.size(); i-- > 0;) {
    const HistoryEvent& event = device.events[i];
    const auto number = static_cast<std::uint32_t>(i);
    if (event.action == Action::segment_alloc || event.action == Action::segment_map) {
      ranges.close(event.address, event.bytes, number);
    }
    if (event.action == Action::segment_free || event.action == Action::segment_unmap) {
      ranges.open({.address = event.address,
                   .bytes = event.bytes,
                   .end = number,
                   .stream = event.stream,
                   .pool = event.pool,
                   .is_small = event.bytes == kSmallBuffer,
                   .is_expandable = event.action == Action::segment_unmap},
                  number);
    }
  }
  return ranges.take();
}

namespace {

// Returns the segments after `events` events. Neighbours of one expandable segment are one.
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
