#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <vector>

#include "tools/history/history.h"
#include "tools/history/memory_ranges.h"

namespace cachalot::tools {
namespace {

constexpr std::uint32_t kBefore = MemoryRange::kBefore;
constexpr std::uint32_t kNever = MemoryRange::kNever;
using Action = HistoryEvent::Action;

struct Expected {
  Address address;
  std::uint64_t bytes;
  std::uint32_t begin;
  std::uint32_t end;

  bool operator==(const Expected&) const = default;
};

std::vector<Expected> plain(const std::vector<MemoryRange>& ranges) {
  std::vector<Expected> result;
  for (const MemoryRange& range : ranges) result.push_back({range.address, range.bytes, range.begin, range.end});
  return result;
}

HistoryEvent event(Action action, Address address, std::uint64_t bytes) {
  HistoryEvent result;
  result.action = action;
  result.address = address;
  result.bytes = bytes;
  return result;
}

HistorySegment segment(Address address, std::uint64_t bytes) {
  HistorySegment result;
  result.address = address;
  result.bytes = bytes;
  return result;
}

TEST(MemoryRanges, AreCutWhereAPartIsGivenBack) {
  MemoryRanges ranges;
  ranges.open({.address = 100, .bytes = 60, .begin = 0}, 0);
  ranges.close(120, 20, 3);
  EXPECT_EQ(plain(ranges.take()), (std::vector<Expected>{{100, 20, 0, kNever}, {120, 20, 0, 3}, {140, 20, 0, kNever}}));
}

TEST(MemoryRanges, OneCloseMayEndSeveral) {
  MemoryRanges ranges;
  ranges.open({.address = 100, .bytes = 10, .begin = 0}, 0);
  ranges.open({.address = 110, .bytes = 10, .begin = 1}, 1);
  ranges.open({.address = 200, .bytes = 10, .begin = 2}, 2);
  ranges.close(0, 150, 5);
  EXPECT_EQ(plain(ranges.take()), (std::vector<Expected>{{100, 10, 0, 5}, {110, 10, 1, 5}, {200, 10, 2, kNever}}));
}

TEST(MemoryRanges, EndAtTheLastAddressWhereAFileSaysMore) {
  MemoryRanges ranges;
  const Address high = std::numeric_limits<Address>::max() - 10;
  ranges.open({.address = high, .bytes = 100, .begin = 0}, 0);
  ranges.close(high, std::numeric_limits<std::uint64_t>::max(), 1);
  EXPECT_EQ(plain(ranges.take()), (std::vector<Expected>{{high, 10, 0, 1}}));
}

TEST(RecordedRanges, AreRebuiltBackwards) {
  DeviceHistory device;
  device.events = {event(Action::segment_free, 10, 5), event(Action::segment_alloc, 20, 8),
                   event(Action::segment_alloc, 40, 4), event(Action::segment_free, 20, 8)};
  device.segments = {segment(40, 4), segment(80, 2)};
  EXPECT_EQ(plain(recorded_ranges(device)),
            (std::vector<Expected>{{10, 5, kBefore, 0}, {80, 2, kBefore, kNever}, {20, 8, 1, 3}, {40, 4, 2, kNever}}));
}

TEST(RecordedRanges, KnowExpandableSegmentsThatGrow) {
  DeviceHistory device;
  device.events = {event(Action::segment_map, 100, 20), event(Action::segment_map, 120, 20),
                   event(Action::segment_unmap, 110, 20)};
  device.segments = {segment(100, 10), segment(130, 10)};
  EXPECT_EQ(plain(recorded_ranges(device)),
            (std::vector<Expected>{{100, 10, 0, kNever}, {110, 10, 0, 2}, {120, 10, 1, 2}, {130, 10, 1, kNever}}));
}

}  // namespace
}  // namespace cachalot::tools
