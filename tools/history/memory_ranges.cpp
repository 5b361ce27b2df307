#include "tools/history/memory_ranges.h"

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
    return std::tuple(range.begin == MemoryRange::kBefore ? 0 : std::uint64_t{range.begin} + 1, range.address,
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
                MemoryRange::kNever);
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

}  // namespace cachalot::tools
