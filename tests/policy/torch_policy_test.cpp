#include "policy/torch_policy.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <random>

namespace cachalot {
namespace {

Options with_divisions(std::size_t divisions) {
  Options options;
  options.roundup_power2_divisions.fill(divisions);
  return options;
}

TEST(TorchPolicy, BoundarySizesGetTheBlockAndSegmentThatPyTorchWasSeenToGive) {
  struct Row {
    std::size_t request, rounded, segment;
    PoolKind kind;
  };
  const Row rows[] = {
      {1, 512, 2 * kMiB, PoolKind::small},
      {511, 512, 2 * kMiB, PoolKind::small},
      {512, 512, 2 * kMiB, PoolKind::small},
      {513, 1024, 2 * kMiB, PoolKind::small},
      {kMiB - 1, kMiB, 2 * kMiB, PoolKind::small},
      {kMiB, kMiB, 2 * kMiB, PoolKind::small},
      {kMiB + 1, 1049088, 20 * kMiB, PoolKind::large},
      {2 * kMiB, 2 * kMiB, 20 * kMiB, PoolKind::large},
      {5 * kMiB, 5 * kMiB, 20 * kMiB, PoolKind::large},
      {10 * kMiB - 513, 10 * kMiB - 512, 20 * kMiB, PoolKind::large},
      {10 * kMiB - 1, 10 * kMiB, 10 * kMiB, PoolKind::large},
      {10 * kMiB, 10 * kMiB, 10 * kMiB, PoolKind::large},
      {10 * kMiB + 1, 10486272, 12 * kMiB, PoolKind::large},
      {11 * kMiB, 11 * kMiB, 12 * kMiB, PoolKind::large},
      {19 * kMiB, 19 * kMiB, 20 * kMiB, PoolKind::large},
      {20 * kMiB, 20 * kMiB, 20 * kMiB, PoolKind::large},
      {21 * kMiB + 1, 22020608, 22 * kMiB, PoolKind::large},
  };
  const Options options;
  for (const Row& row : rows) {
    SCOPED_TRACE(row.request);
    EXPECT_EQ(round_size(row.request, options), row.rounded);
    EXPECT_EQ(pool_kind(row.rounded), row.kind);
    EXPECT_EQ(segment_size(row.rounded, kLargeBuffer), row.segment);
  }
}

TEST(TorchPolicy, LargeSegmentSizeIsTheSegmentOfRequestsUnder10MiBOnly) {
  EXPECT_EQ(segment_size(kMiB, 32 * kMiB), 2 * kMiB);
  EXPECT_EQ(segment_size(kMiB + 512, 32 * kMiB), 32 * kMiB);
  EXPECT_EQ(segment_size(10 * kMiB - 512, 32 * kMiB), 32 * kMiB);
  EXPECT_EQ(segment_size(10 * kMiB, 32 * kMiB), 10 * kMiB);
}

TEST(TorchPolicy, DivisionsAreInUseOnlyFromTwoOn) {
  EXPECT_FALSE(rounds_by_divisions(Options{}));
  EXPECT_FALSE(rounds_by_divisions(with_divisions(1)));
  EXPECT_TRUE(rounds_by_divisions(with_divisions(2)));
  Options last_slot_only;
  last_slot_only.roundup_power2_divisions.back() = 2;
  EXPECT_TRUE(rounds_by_divisions(last_slot_only));
}

TEST(TorchPolicy, FourDivisionsRoundAsPyTorchWasSeenToRound) {
  struct Row {
    std::size_t request, rounded;
  };
  const Row rows[] = {
      {1, 512},
      {511, 512},
      {600, 1024},   // not above 4 x 512: plain rounding
      {2047, 2048},  //
      {2048, 2048},  //
      {2049, 2560},  // the first request above: steps of 2048 / 4
      {3000, 3072},  //
      {4095, 4096},  //
      {5000, 5120},  //
      {kMiB, kMiB},  // a power of two stays
      {kMiB + 1, kMiB + kMiB / 4},
      {84 * kMiB, 96 * kMiB},
      {96 * kMiB, 96 * kMiB},  // on a step
      {96 * kMiB + 1, 112 * kMiB},
  };
  for (const Row& row : rows) EXPECT_EQ(round_size(row.request, with_divisions(4)), row.rounded) << row.request;
}

TEST(TorchPolicy, OneDivisionIsPlainRounding) {
  for (const std::size_t bytes : {std::size_t{1}, std::size_t{513}, std::size_t{3000}, kMiB, kMiB + 1}) {
    EXPECT_EQ(round_power2_divisions(bytes, with_divisions(1)), round_to_block(bytes));
  }
}

TEST(TorchPolicy, SlotsStartAtOneMiBAndTheEndsTakeTheRest) {
  EXPECT_EQ(roundup_slot(512), 0u);
  EXPECT_EQ(roundup_slot(2 * kMiB - 1), 0u);
  EXPECT_EQ(roundup_slot(2 * kMiB), 1u);
  EXPECT_EQ(roundup_slot(kGiB), 10u);
  EXPECT_EQ(roundup_slot(32 * kGiB - 1), 14u);
  EXPECT_EQ(roundup_slot(32 * kGiB), 15u);
  EXPECT_EQ(roundup_slot(64 * kGiB), 15u);
  EXPECT_EQ(roundup_slot(std::size_t{1} << 59), 15u);
}

TEST(TorchPolicy, EachSlotHasDivisionsOfItsOwn) {
  Options options;
  options.roundup_power2_divisions[1] = 2;  // [2 MiB, 4 MiB)
  EXPECT_EQ(round_size(2 * kMiB - 1, options), 2 * kMiB);
  EXPECT_EQ(round_size(2 * kMiB + 1, options), 3 * kMiB);
  EXPECT_EQ(round_size(3 * kMiB + 1, options), 4 * kMiB);
  EXPECT_EQ(round_size(4 * kMiB + 1, options), 4 * kMiB + 512);
}

TEST(TorchPolicy, AbsurdlyManyDivisionsWrapToPowersOfTwoAsInPyTorch) {
  EXPECT_EQ(round_size(3000, with_divisions(std::size_t{1} << 60)), 4096u);
  EXPECT_EQ(round_size(4096, with_divisions(std::size_t{1} << 60)), 4096u);
}

TEST(TorchPolicy, RoundedSizesAreBlockMultiplesThatHoldTheRequest) {
  const std::uint64_t seed = std::random_device{}();
  SCOPED_TRACE(seed);
  std::mt19937_64 random(seed);
  for (int i = 0; i < 100'000; ++i) {
    const std::size_t bytes = 1 + (random() >> (5 + random() % 59));
    const Options options = with_divisions(std::size_t{1} << random() % 10);
    const std::size_t rounded = round_size(bytes, options);
    ASSERT_GE(rounded, bytes);
    ASSERT_EQ(rounded % kMinBlockSize, 0u) << bytes;
    ASSERT_LE(rounded, std::max(kMinBlockSize, std::bit_ceil(bytes))) << bytes;
    ASSERT_EQ(round_size(rounded, options), rounded) << bytes;
    ASSERT_GE(segment_size(rounded, kLargeBuffer), rounded) << bytes;
  }
}

TEST(TorchPolicy, WithoutMaxSplitSizeAnyBlockServes) {
  const Options options;
  EXPECT_FALSE(is_oversize(std::size_t{1} << 60, options));
  EXPECT_TRUE(may_use(200 * kGiB, 2 * kMiB, options));
}

TEST(TorchPolicy, RequestsBelowMaxSplitSizeMayNotUseOversizeBlocks) {
  Options options;
  options.max_split_size = 32 * kMiB;
  EXPECT_TRUE(may_use(32 * kMiB - 512, 2 * kMiB, options));
  EXPECT_FALSE(may_use(32 * kMiB, 2 * kMiB, options));
  EXPECT_FALSE(may_use(32 * kMiB, 32 * kMiB - 512, options));
}

TEST(TorchPolicy, OversizeRequestsMayUseBlocksLessThanTheRoundingLarger) {
  Options options;
  options.max_split_size = 32 * kMiB;
  EXPECT_TRUE(may_use(32 * kMiB, 32 * kMiB, options));
  EXPECT_TRUE(may_use(52 * kMiB - 512, 32 * kMiB, options));
  EXPECT_FALSE(may_use(52 * kMiB, 32 * kMiB, options));
  options.max_non_split_rounding = 40 * kMiB;
  EXPECT_TRUE(may_use(72 * kMiB - 512, 32 * kMiB, options));
  EXPECT_FALSE(may_use(72 * kMiB, 32 * kMiB, options));
  options.max_non_split_rounding = Options::kUnlimited;
  EXPECT_TRUE(may_use(std::size_t{1} << 60, 32 * kMiB, options));
}

TEST(TorchPolicy, SmallBlocksAreSplitWhenOneBlockRemains) {
  EXPECT_FALSE(should_split(PoolKind::small, 1024, 1024, {}));
  EXPECT_TRUE(should_split(PoolKind::small, 1024, 512, {}));
  EXPECT_TRUE(should_split(PoolKind::small, 2 * kMiB, kMiB, {}));
}

TEST(TorchPolicy, LargeBlocksAreSplitWhenMoreThanOneMiBRemains) {
  EXPECT_FALSE(should_split(PoolKind::large, 12 * kMiB, 11 * kMiB, {}));
  EXPECT_TRUE(should_split(PoolKind::large, 12 * kMiB, 11 * kMiB - 512, {}));
  EXPECT_FALSE(should_split(PoolKind::large, 20 * kMiB, 19 * kMiB, {}));
  EXPECT_TRUE(should_split(PoolKind::large, 12 * kMiB, 10486272, {}));  // leaves 2096640, as in PyTorch
}

TEST(TorchPolicy, OversizeRequestsAreNeverSplitOff) {
  Options options;
  options.max_split_size = 32 * kMiB;
  EXPECT_TRUE(should_split(PoolKind::large, 48 * kMiB, 32 * kMiB - 512, options));
  EXPECT_FALSE(should_split(PoolKind::large, 48 * kMiB, 32 * kMiB, options));
  EXPECT_TRUE(should_split(PoolKind::small, 2 * kMiB, 512, options));
}

}  // namespace
}  // namespace cachalot
