#include "blocks/counters.h"

#include <gtest/gtest.h>

namespace cachalot {
namespace {

constexpr PoolKind kSmall = PoolKind::small;
constexpr PoolKind kLarge = PoolKind::large;

TEST(Counters, AllIsTheSumOfTheKindsButForItsPeak) {
  Counters counters;
  counters.allocated(kSmall, 512, 100);
  counters.free_requested(kSmall, 512);
  counters.free_completed(kSmall, 100);
  counters.allocated(kLarge, 4096, 4000);
  const StatArray bytes = counters.stats().allocated_bytes;
  EXPECT_EQ(bytes.small_pool, (Stat{0, 512, 512, 512}));
  EXPECT_EQ(bytes.large_pool, (Stat{4096, 4096, 4096, 0}));
  EXPECT_EQ(bytes.all, (Stat{4096, 4096, 4608, 512}));
  EXPECT_EQ(counters.stats().requested_bytes.all, (Stat{4000, 4000, 4100, 100}));
}

TEST(Counters, AWaitingBlockIsActiveButNotAllocated) {
  Counters counters;
  counters.allocated(kSmall, 512, 100);
  counters.free_requested(kSmall, 512);
  counters.starts_waiting(kSmall, 512);
  counters.allocated(kSmall, 1024, 1000);
  EXPECT_EQ(counters.stats().allocated_bytes.all, (Stat{1024, 1024, 1536, 512}));
  EXPECT_EQ(counters.stats().active_bytes.all, (Stat{1536, 1536, 1536, 0}));
  EXPECT_EQ(counters.stats().active.all, (Stat{2, 2, 2, 0}));
  EXPECT_EQ(counters.waiting_bytes(), 512);
  counters.stops_waiting(kSmall, 512);
  counters.free_completed(kSmall, 100);
  EXPECT_EQ(counters.stats().active_bytes.all, (Stat{1024, 1536, 1536, 512}));
}

TEST(Counters, ResetsKeepWhatIsThere) {
  Counters counters;
  counters.allocated(kSmall, 512, 100);
  counters.allocated(kSmall, 512, 100);
  counters.free_requested(kSmall, 512);
  counters.starts_waiting(kSmall, 512);
  counters.events.ooms = 3;
  counters.reset_peak();
  counters.reset_accumulated();
  EXPECT_EQ(counters.stats().allocation.all, (Stat{1, 1, 0, 0}));
  EXPECT_EQ(counters.stats().active.all, (Stat{2, 2, 0, 0}));
  EXPECT_EQ(counters.stats().num_ooms, 0);
  counters.stops_waiting(kSmall, 512);
  counters.free_completed(kSmall, 100);
  EXPECT_EQ(counters.stats().active.all, (Stat{1, 2, 0, 1}));
  EXPECT_EQ(counters.stats().requested_bytes.all, (Stat{100, 200, 0, 100}));
}

TEST(Counters, InactiveSplitMovesBothWays) {
  Counters counters;
  counters.inactive_split(kLarge, 1, 4096);
  counters.inactive_split(kLarge, 0, -1024);
  counters.inactive_split(kLarge, -1, -3072);
  EXPECT_EQ(counters.stats().inactive_split.all, (Stat{0, 1, 1, 1}));
  EXPECT_EQ(counters.stats().inactive_split_bytes.all, (Stat{0, 4096, 4096, 4096}));
}

TEST(Counters, SegmentsCountDeviceCalls) {
  Counters counters;
  counters.segment_allocated(kLarge, 20 << 20);
  counters.segment_freed(kLarge, 20 << 20);
  EXPECT_EQ(counters.stats().reserved_bytes.large_pool, (Stat{0, 20 << 20, 20 << 20, 20 << 20}));
  EXPECT_EQ(counters.stats().num_device_alloc, 1);
  counters.segment_kept(kLarge, 20 << 20);
  EXPECT_EQ(counters.stats().reserved_bytes.large_pool, (Stat{20 << 20, 20 << 20, 20 << 20, 0}));
  EXPECT_EQ(counters.stats().segment.large_pool, (Stat{1, 1, 1, 0}));
}

}  // namespace
}  // namespace cachalot
