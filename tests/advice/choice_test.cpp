// Tests of the choice among policies, and of the memory that each needs.
#include <gtest/gtest.h>

#include <array>
#include <cstddef>

#include "base/bytes.h"
#include "tests/tools/trace_with_holes.h"
#include "tools/replay/policies.h"

namespace cachalot::tools {
namespace {

const PolicyOffer kPlain{.held_bytes = 1000, .driver_us = 50};

TEST(Choice, PrefersPoliciesThatServeEveryRequest) {
  const std::array offers = {PolicyOffer{.ooms = 1, .held_bytes = 10, .is_own = true}, kPlain};
  EXPECT_EQ(choose(offers), 1U);
}

TEST(Choice, TakesLessMemoryOnlyFromOnePerCentOn) {
  PolicyOffer less = kPlain;
  less.needs_cachalot = true;
  less.held_bytes = 991;
  EXPECT_EQ(choose(std::array{kPlain, less}), 0U);
  less.held_bytes = 990;
  EXPECT_EQ(choose(std::array{kPlain, less}), 1U);
}

TEST(Choice, AmongEqualsKeepsTheProgramsOwnThenPyTorchThenFewerOptionsThenLessDriverTime) {
  PolicyOffer own = kPlain, heap = kPlain, option = kPlain, quick = kPlain;
  own.is_own = own.needs_cachalot = true;
  own.options = 3;
  heap.needs_cachalot = true;
  option.options = 1;
  quick.driver_us = 40;
  EXPECT_EQ(choose(std::array{heap, option, kPlain, quick, own}), 4U);
  EXPECT_EQ(choose(std::array{heap, option, kPlain, quick}), 3U);
  EXPECT_EQ(choose(std::array{heap, option, kPlain}), 2U);
  EXPECT_EQ(choose(std::array{heap, option}), 1U);
}

TEST(Choice, OfEqualOffersIsTheFirst) { EXPECT_EQ(choose(std::array{kPlain, kPlain}), 0U); }

TEST(Choice, CountsThePoliciesOptions) {
  const Policy own;
  Policy limited;
  limited.max_split_size_mb = 128;
  const Policy pages{.heap = Policy::Heap::pages};
  EXPECT_TRUE(offer_of(own, {}, own).is_own);
  EXPECT_FALSE(offer_of(own, {}, own).needs_cachalot);
  EXPECT_FALSE(offer_of(limited, {}, own).is_own);
  EXPECT_GT(offer_of(limited, {}, own).options, offer_of(own, {}, own).options);
  EXPECT_TRUE(offer_of(pages, {}, own).needs_cachalot);
}

TEST(MemoryNeed, IsWhatLivesOnPagesAndTheHolesBesideInSegments) {
  MemoryNeed need(trace_with_holes());
  EXPECT_EQ(need.live_bytes(), 24 * 8 * kMiB);
  EXPECT_EQ(need.held_bytes({}), (12 * 20 + 4 * 24) * kMiB);
  EXPECT_EQ(need.held_bytes({.heap = Policy::Heap::pages}), 24 * 8 * kMiB);
}

TEST(MemoryNeed, OfTheSmallestDeviceThatFitsIsEnoughForEachLargerOne) {
  MemoryNeed need(trace_with_holes());
  for (const Policy::Heap heap : kHeaps) {
    const Policy policy{.heap = heap};
    EXPECT_FALSE(need.fits(policy, need.live_bytes() - 1)) << name_of(heap);
    bool did_fit = false;
    for (std::size_t bytes = need.live_bytes(); bytes <= need.held_bytes(policy) + 64 * kMiB; bytes += 2 * kMiB) {
      const bool fits = need.fits(policy, bytes);
      EXPECT_TRUE(fits || !did_fit) << name_of(heap) << ", " << format_bytes(bytes);
      did_fit = fits;
    }
    EXPECT_TRUE(did_fit) << name_of(heap);
  }
}

}  // namespace
}  // namespace cachalot::tools
