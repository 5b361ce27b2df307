#include "diagnostics/trend.h"

#include <gtest/gtest.h>

#include <random>
#include <vector>

namespace cachalot {
namespace {

constexpr double kSure = 0.999;

std::vector<std::size_t> samples(std::size_t count, auto&& value) {
  std::vector<std::size_t> result;
  for (std::size_t i = 0; i < count; ++i) result.push_back(static_cast<std::size_t>(value(i)));
  return result;
}

TEST(Trend, HasTheSlopeOfALine) {
  const Trend trend = trend_of(samples(20, [](std::size_t i) { return 1000 + 512 * i; }));
  EXPECT_DOUBLE_EQ(trend.slope, 512);
  EXPECT_GT(trend.confidence, 0.9999);
}

TEST(Trend, IsNotMovedBySingleOutliers) {
  std::vector<std::size_t> series = samples(20, [](std::size_t i) { return 1000 + 512 * i; });
  series[3] = 1 << 30;
  series[12] = 0;
  EXPECT_DOUBLE_EQ(trend_of(series).slope, 512);
}

TEST(Trend, FallsWithAFallingSeries) {
  const Trend trend = trend_of(samples(20, [](std::size_t i) { return 100000 - 512 * i; }));
  EXPECT_DOUBLE_EQ(trend.slope, -512);
  EXPECT_LT(trend.confidence, 0.0001);
}

// Kendall's example values: a series of 8 that rises always has S = 28, of variance 65 1/3, so z = 27 / 8.083.
TEST(Trend, HasMannAndKendallsConfidence) {
  EXPECT_NEAR(trend_of(samples(8, [](std::size_t i) { return i; })).confidence, 0.99958, 0.00001);
  EXPECT_NEAR(trend_of(samples(6, [](std::size_t i) { return i; })).confidence, 0.99573, 0.00001);
  EXPECT_DOUBLE_EQ(trend_of(samples(8, [](std::size_t) { return 7; })).confidence, 0.5);
}

// 1 1 2 2 3 3 4 4: S = 24, of variance 65 1/3 less 18 / 18 for each pair of equals, so z = 23 / 7.832.
TEST(Trend, IsSurerOfARiseBetweenEquals) {
  EXPECT_NEAR(trend_of(samples(8, [](std::size_t i) { return 1 + i / 2; })).confidence, 0.99834, 0.00001);
}

TEST(Growth, IsThatOfALeakOfOneBlockAnIteration) {
  const auto growth = growth_of(samples(8, [](std::size_t i) { return 512 * i; }), kSure);
  ASSERT_TRUE(growth);
  EXPECT_DOUBLE_EQ(growth->slope, 512);
}

TEST(Growth, IsThatOfALeakOfABlockEveryTenIterations) {
  const auto growth = growth_of(samples(64, [](std::size_t i) { return 512 * (i / 10); }), kSure);
  ASSERT_TRUE(growth);
  EXPECT_NEAR(growth->slope, 51.2, 10);
}

TEST(Growth, IsFoundUnderNoiseOfTheLeaksOwnSize) {
  std::mt19937 random(7);
  const auto growth = growth_of(samples(64, [&](std::size_t i) { return 512 * i + random() % 1024; }), kSure);
  ASSERT_TRUE(growth);
  EXPECT_NEAR(growth->slope, 512, 30);
}

TEST(Growth, IsNotThatOfAConstant) {
  EXPECT_FALSE(growth_of(samples(64, [](std::size_t) { return 512; }), kSure));
}

TEST(Growth, IsNotThatOfASeriesThatSwings) {
  EXPECT_FALSE(growth_of(samples(64, [](std::size_t i) { return i % 2 * 512; }), kSure));
  EXPECT_FALSE(growth_of(samples(64, [](std::size_t i) { return i % 16 * 512; }), kSure)) << "a list emptied at times";
}

TEST(Growth, IsNotThatOfACacheThatHasFilledUp) {
  for (std::size_t full = 1; full <= 40; ++full) {
    EXPECT_FALSE(growth_of(samples(64, [&](std::size_t i) { return std::min(i, full) * 512; }), kSure)) << full;
  }
}

TEST(Growth, IsNotOneJump) {
  for (std::size_t when = 1; when < 64; ++when) {
    EXPECT_FALSE(growth_of(samples(64, [&](std::size_t i) { return i < when ? 512 : 4096; }), kSure)) << when;
  }
}

TEST(Growth, NeedsEightSamples) {
  EXPECT_FALSE(growth_of(samples(7, [](std::size_t i) { return 512 * i; }), kSure));
  EXPECT_FALSE(growth_of({}, kSure));
}

// The promise of min_confidence, with room for chance: 10,000 series that do not grow.
TEST(Growth, IsSeldomSeenInNoise) {
  for (const unsigned seed : {1u, 2u, 3u}) {
    std::mt19937 random(seed);
    int seen = 0;
    for (int series = 0; series < 10'000; ++series) {
      const std::size_t count = kFewestSamples + random() % 57;
      if (growth_of(samples(count, [&](std::size_t) { return random() % 100'000; }), kSure)) ++seen;
    }
    EXPECT_LE(seen, 10) << "seed " << seed;
  }
}

}  // namespace
}  // namespace cachalot
