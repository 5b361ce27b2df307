#include "tools/analysis/layout.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <utility>

#include "policy/torch_policy.h"

namespace cachalot::tools {
namespace {

// The segments of the end, from which events are taken back.
class SegmentsBackwards {
 public:
  explicit SegmentsBackwards(const DeviceHistory& device) {
    for (const HistorySegment& segment : device.segments) {
      segments_[segment.address] = {.address = segment.address,
                                    .bytes = segment.bytes,
                                    .stream = segment.stream,
                                    .pool = segment.pool,
                                    .is_small = segment.is_small,
                                    .is_expandable = segment.is_expandable};
    }
  }

  void take_back(const HistoryEvent& event) {
    switch (event.action) {
      case HistoryEvent::Action::segment_alloc:
        segments_.erase(event.address);
        break;
      case HistoryEvent::Action::segment_free:
        add(event, /*is_expandable=*/false);
        break;
      case HistoryEvent::Action::segment_map:
        remove(event.address, event.bytes);
        break;
      case HistoryEvent::Action::segment_unmap:
        add(event, /*is_expandable=*/true);
        break;
      default:
        break;
    }
  }

  // Neighbours of one expandable segment are one.
  std::vector<SegmentAt> take() {
    std::vector<SegmentAt> segments;
    for (auto& [address, segment] : segments_) {
      SegmentAt* const last = segments.empty() ? nullptr : &segments.back();
      if (last != nullptr && last->is_expandable && segment.is_expandable && last->address + last->bytes == address &&
          last->stream == segment.stream && last->pool == segment.pool && last->is_small == segment.is_small) {
        last->bytes += segment.bytes;
      } else {
        segments.push_back(std::move(segment));
      }
    }
    return segments;
  }

 private:
  void add(const HistoryEvent& event, bool is_expandable) {
    segments_[event.address] = {.address = event.address,
                                .bytes = event.bytes,
                                .stream = event.stream,
                                .pool = event.pool,
                                .is_small = event.bytes == kSmallBuffer,
                                .is_expandable = is_expandable};
  }

  void remove(Address address, std::uint64_t bytes) {
    auto part = segments_.upper_bound(address);
    if (part == segments_.begin()) return;
    --part;
    SegmentAt& segment = part->second;
    const Address end = segment.address + segment.bytes;
    if (end < address + bytes || end < segment.address) return;  // not what a driver does: the file is damaged
    if (end > address + bytes) {
      SegmentAt rest = segment;
      rest.address = address + bytes;
      rest.bytes = end - rest.address;
      segments_[rest.address] = rest;
    }
    segment.bytes = address - segment.address;
    if (segment.bytes == 0) segments_.erase(part);
  }

  std::map<Address, SegmentAt> segments_;
};

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
  SegmentsBackwards backwards(device);
  for (std::size_t i = device.events.size(); i > peak.event; --i) backwards.take_back(device.events[i - 1]);
  std::vector<SegmentAt> segments = backwards.take();
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
