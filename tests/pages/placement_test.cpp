// Placement by itself: which window of addresses serves a request.
#include "pages/placement.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <random>
#include <vector>

#include "tests/pages/pages_by_hand.h"

namespace cachalot {
namespace {

constexpr double kDriverCost = 0.002 * (29 + 2 + 38);  // of a new handle, in pages, as Backing counts the driver's time

class PlacementOfARequest : public testing::Test {
 protected:
  static constexpr std::size_t kPage = PagesByHand::kPage;
  static Address at(std::size_t slot) { return PagesByHand::at(slot); }

  // All of the request's stream is within reach, as usual.
  std::optional<BackingPlan> best(std::size_t bytes, PlacementRules rules = {}) {
    rules.handle_bytes = 4 * kPage;
    hand.arena.reach = {Reach::Kind::all};
    return placement.best(hand.arena, hand.pools(), bytes, rules);
  }
  // Carries the plan out, and hands the bytes out.
  Block& take(const BackingPlan& plan) {
    const Block& block = hand.execute(plan, hand.arena);
    EXPECT_LE(block.address, plan.begin);
    EXPECT_LE(plan.end, block.end());
    return hand.take(plan.begin, plan.end - plan.begin);
  }

  PagesByHand hand;
  Placement placement{hand.pages, hand.costs};
};

// --- windows ---------------------------------------------------------------------------------------------------------

TEST_F(PlacementOfARequest, BeginsInTheFirstHoleThatIsLargeEnough) {
  hand.grow_live(0, 1);
  hand.grow_live(2, 1);  // a gap of one page before it
  hand.grow_live(5, 1);  // of two
  hand.grow_live(8, 1);  // of two
  const std::optional<BackingPlan> plan = best(2 * kPage);
  ASSERT_TRUE(plan);
  EXPECT_EQ(plan->begin, at(3));
  EXPECT_EQ(plan->end, at(5));
  EXPECT_EQ(plan->new_pages, 2u);
  take(*plan);
}

TEST_F(PlacementOfARequest, GoesBehindEverythingWhereNoHoleIsLargeEnough) {
  hand.grow_live(0, 1);
  hand.grow_live(2, 1);
  const std::optional<BackingPlan> plan = best(2 * kPage);
  ASSERT_TRUE(plan);
  EXPECT_EQ(plan->begin, at(3));
  take(*plan);
}

TEST_F(PlacementOfARequest, LooksAtAnotherPartOfManyGapsEachTime) {
  constexpr std::size_t kGaps = 1100;  // more than one search looks at
  constexpr std::size_t kHole = 1060;
  for (std::size_t i = 0, slot = 0; i < kGaps; ++i, slot += i == kHole ? 3 : 2) hand.grow_live(slot, 1);
  const std::optional<BackingPlan> plan = best(2 * kPage);
  ASSERT_TRUE(plan);
  EXPECT_EQ(plan->begin, at(2 * kGaps)) << "the end is always looked at";
  const std::optional<BackingPlan> next = best(2 * kPage);
  ASSERT_TRUE(next);
  EXPECT_EQ(next->begin, at(2 * kHole - 1));
  take(*next);
}

TEST_F(PlacementOfARequest, SharesAPageRatherThanStrandingHalfOfOne) {
  hand.grow_live(0, 1);
  hand.grow_live(3, 1);  // behind a gap of two pages, first by address
  hand.grow(4, 1);
  hand.take(at(4), kMiB);  // half a page is free, and then a gap of one
  hand.grow_live(6, 1);
  const std::optional<BackingPlan> plan = best(3 * kMiB);
  ASSERT_TRUE(plan);
  EXPECT_EQ(plan->begin, at(4) + kMiB);
  EXPECT_EQ(plan->new_pages, 1u);
  EXPECT_NEAR(plan->cost, 1 - 0.5 + kDriverCost, 1e-9) << "it saves others half a page that they could not use";
  take(*plan);
}

TEST_F(PlacementOfARequest, EndsInAPageThatIsPartlyLive) {
  hand.grow_live(0, 1);
  hand.grow_live(4, 1);  // behind a gap of three pages, first by address
  hand.grow(8, 1);
  hand.take(at(8) + kMiB, kMiB);  // a gap of three, and then half a page is free
  const std::optional<BackingPlan> plan = best(5 * kMiB);
  ASSERT_TRUE(plan);
  EXPECT_EQ(plan->end, at(8) + kMiB);
  EXPECT_EQ(plan->new_pages, 2u);
  EXPECT_NEAR(plan->cost, 2 - 0.5 + kDriverCost, 1e-9) << "it saves others half a page that they could not use";
  take(*plan);
}

TEST_F(PlacementOfARequest, NeedsAddresses) {
  EXPECT_FALSE(best((PagesByHand::kSlots + 1) * kPage));
  EXPECT_TRUE(best(PagesByHand::kSlots * kPage));
  hand.grow_live(PagesByHand::kSlots - 1, 1);
  EXPECT_TRUE(best((PagesByHand::kSlots - 1) * kPage));
  EXPECT_FALSE(best(PagesByHand::kSlots * kPage));
}

// --- idle pages and new ones -----------------------------------------------------------------------------------------

// Pages by themselves: the even ones are live, the odd ones idle.
void make_holes_of_a_page(PagesByHand& hand, std::size_t slots) {
  for (std::size_t slot = 0; slot < slots; ++slot) {
    hand.grow(slot, 1);
    if (slot % 2 == 0) hand.take(PagesByHand::at(slot), PagesByHand::kPage);
  }
}

TEST_F(PlacementOfARequest, MovesIdlePagesRatherThanGrowing) {
  make_holes_of_a_page(hand, 9);
  const std::optional<BackingPlan> plan = best(4 * kPage);
  ASSERT_TRUE(plan);
  EXPECT_EQ(plan->new_pages, 0u);
  EXPECT_EQ(plan->new_views, 4u);
  EXPECT_EQ(plan->begin, at(9));
  take(*plan);
  EXPECT_EQ(hand.pages.shown_at(*hand.range, at(9)), hand.pages.shown_at(*hand.range, at(1)));
}

TEST_F(PlacementOfARequest, GrowsOnlyByWhatIdlePagesDoNotCover) {
  make_holes_of_a_page(hand, 9);
  const std::optional<BackingPlan> plan = best(6 * kPage);
  ASSERT_TRUE(plan);
  EXPECT_EQ(plan->new_pages, 2u);
  EXPECT_EQ(plan->new_views, 4u);
  take(*plan);
}

TEST_F(PlacementOfARequest, BeginsWithTheFreePagesThatLieThere) {
  make_holes_of_a_page(hand, 8);  // the last is idle
  const std::optional<BackingPlan> plan = best(3 * kPage);
  ASSERT_TRUE(plan);
  EXPECT_EQ(plan->begin, at(7));
  EXPECT_EQ(plan->new_views, 2u);
  EXPECT_EQ(plan->new_pages, 0u);
  take(*plan);
}

// --- rules -----------------------------------------------------------------------------------------------------------

TEST_F(PlacementOfARequest, LeavesIdlePagesWhereTheyAreIfNoneMayBeMoved) {
  make_holes_of_a_page(hand, 9);
  const std::optional<BackingPlan> plan = best(4 * kPage, {.may_move = false});
  ASSERT_TRUE(plan);
  EXPECT_TRUE(plan->moves.empty());
  EXPECT_EQ(plan->new_views, 0u);
  EXPECT_EQ(plan->new_pages, 4u);
  take(*plan);
}

TEST_F(PlacementOfARequest, BeginsWithAFreePageThoughNoneMayBeMoved) {
  make_holes_of_a_page(hand, 8);
  const std::optional<BackingPlan> plan = best(3 * kPage, {.may_move = false});
  ASSERT_TRUE(plan);
  EXPECT_EQ(plan->begin, at(7));
  EXPECT_EQ(plan->new_pages, 2u);
  EXPECT_NEAR(plan->cost, 2 - 1 + kDriverCost, 1e-9) << "it has a page already";
  take(*plan);
}

TEST_F(PlacementOfARequest, IsNowhereIfIdlePagesDoNotCoverItAndNoneMayBeNew) {
  make_holes_of_a_page(hand, 9);
  EXPECT_FALSE(best(5 * kPage, {.may_grow = false}));
  EXPECT_FALSE(best(4 * kPage, {.may_move = false, .may_grow = false}));
  const std::optional<BackingPlan> plan = best(4 * kPage, {.may_grow = false});
  ASSERT_TRUE(plan);
  EXPECT_EQ(plan->new_pages, 0u);
  take(*plan);
}

// A stale view lies in the hole that would be best.
TEST_F(PlacementOfARequest, DropsAViewThatIsInTheWayIfItMay) {
  const HandleId handle = hand.grow(20, 1);
  hand.leave_view(handle, 1);
  hand.take(at(20), kPage);
  hand.grow(0, 1);
  hand.take(at(0), kMiB);
  hand.grow_live(2, 1);
  const Address best_begin = at(0) + kMiB;
  EXPECT_NE(best(3 * kMiB)->begin, best_begin) << "the view's last use is not done";
  hand.clock_of(hand.arena).everything_is_done(hand.arena.epoch);
  EXPECT_NE(best(3 * kMiB, {.may_drop = false})->begin, best_begin);
  const std::optional<BackingPlan> plan = best(3 * kMiB);
  ASSERT_TRUE(plan);
  EXPECT_EQ(plan->begin, best_begin);
  ASSERT_EQ(plan->drops.size(), 1u);
  EXPECT_EQ(plan->drops[0].at, at(1));
  take(*plan);
}

TEST_F(PlacementOfARequest, MustCostLessThanTheLimit) {
  make_holes_of_a_page(hand, 9);
  const std::optional<BackingPlan> plan = best(4 * kPage);
  ASSERT_TRUE(plan);
  EXPECT_NEAR(plan->cost, 0.002 * (4 * 2 + 38), 1e-9) << "maps, and one call for access";
  EXPECT_FALSE(best(4 * kPage, {.cost_below = plan->cost}));
  const std::optional<BackingPlan> again = best(4 * kPage, {.cost_below = plan->cost + 1e-6});
  ASSERT_TRUE(again);
  EXPECT_EQ(again->begin, plan->begin);
  EXPECT_EQ(again->cost, plan->cost);
}

// --- other streams ---------------------------------------------------------------------------------------------------

TEST_F(PlacementOfARequest, TakesOfOtherStreamsWhatIsWithinReach) {
  hand.grow_live(0, 1);
  hand.grow(1, 1);
  hand.other.epoch = 5;
  hand.grow(2, 1, hand.other);
  hand.grow_live(4, 1);  // behind a gap of a page
  hand.other.reach = {Reach::Kind::until, 4};
  const std::optional<BackingPlan> before = best(2 * kPage);
  ASSERT_TRUE(before);
  EXPECT_EQ(before->new_pages, 1u);
  EXPECT_EQ(before->begin, at(5));
  EXPECT_FALSE(best(2 * kPage, {.may_grow = false}));
  hand.other.reach = {Reach::Kind::until, 5};
  const std::optional<BackingPlan> after = best(2 * kPage);
  ASSERT_TRUE(after);
  EXPECT_EQ(after->begin, at(1));
  EXPECT_FALSE(after->calls_driver());
  EXPECT_EQ(take(*after).arena, &hand.arena);
}

TEST_F(PlacementOfARequest, UsesAHoleThatEndedAtABlockBeyondReach) {
  hand.grow_live(0, 1);
  hand.grow(1, 1, hand.other);
  hand.take(at(1), kMiB);  // the other half is free, and then there is a gap of a page
  hand.grow_live(3, 1);
  hand.other.reach = {};
  const std::optional<BackingPlan> before = best(3 * kMiB);
  ASSERT_TRUE(before);
  EXPECT_EQ(before->begin, at(4));
  hand.other.reach = {Reach::Kind::all};
  const std::optional<BackingPlan> after = best(3 * kMiB, {.cost_below = before->cost});
  ASSERT_TRUE(after);
  EXPECT_EQ(after->begin, at(1) + kMiB);
  take(*after);
}

// --- ranges ----------------------------------------------------------------------------------------------------------

TEST_F(PlacementOfARequest, IsInARangeOfItsKind) {
  Arena& arena = hand.small.add(immortal_stream(nullptr));
  EXPECT_FALSE(placement.best(arena, hand.pools(), kPage, {.handle_bytes = kPage}));
  const Address base = at(10 * PagesByHand::kSlots);
  hand.pages.add_range(base, 16 * kPage, PoolKind::small, nullptr);
  const std::optional<BackingPlan> plan = placement.best(arena, hand.pools(), kPage, {.handle_bytes = kPage});
  ASSERT_TRUE(plan);
  EXPECT_EQ(plan->begin, base);
  EXPECT_EQ(best(kPage)->begin, at(0));
}

TEST_F(PlacementOfARequest, IsInARangeOfItsPool) {
  PrivatePool* const owner = reinterpret_cast<PrivatePool*>(0x1000);  // nothing but its identity counts
  BlockPool small(PoolKind::small, {1, 0}, owner);
  BlockPool large(PoolKind::large, {1, 0}, owner);
  Arena& arena = large.add(immortal_stream(nullptr));
  const PoolPair pools{&small, &large};
  make_holes_of_a_page(hand, 9);
  EXPECT_FALSE(placement.best(arena, pools, kPage, {.handle_bytes = kPage}));
  const Address base = at(10 * PagesByHand::kSlots);
  hand.pages.add_range(base, 1024 * kPage, PoolKind::large, owner);
  arena.reach = {Reach::Kind::all};
  const std::optional<BackingPlan> plan = placement.best(arena, pools, 4 * kPage, {.handle_bytes = 4 * kPage});
  ASSERT_TRUE(plan);
  EXPECT_EQ(plan->range->owner, owner);
  EXPECT_EQ(plan->begin, base);
  EXPECT_TRUE(plan->moves.empty()) << "the default pool's idle pages stay its own";
  EXPECT_EQ(plan->new_pages, 4u);
  hand.execute(*plan, arena);
  // Nor does the default pool take its idle pages, or go to its range.
  const std::optional<BackingPlan> ours = best(5 * kPage);
  ASSERT_TRUE(ours);
  EXPECT_EQ(ours->range, hand.range);
  EXPECT_EQ(ours->new_pages, 1u);
  EXPECT_FALSE(best(5 * kPage, {.may_grow = false}));
  take(*ours);
}

// --- any heap --------------------------------------------------------------------------------------------------------

// The plan found with a limit just above its cost has the same cost, and none is found below that.
TEST_F(PlacementOfARequest, IsTheSameForEveryLimitAboveItsCost) {
  constexpr std::uint32_t kSeed = 20240611;
  std::mt19937 random(kSeed);
  Vector<Block*> live;
  for (int step = 0; step < 300; ++step) {
    SCOPED_TRACE(step);
    const std::size_t bytes = (1 + random() % 12) * kMiB / 2;
    const std::optional<BackingPlan> plan = best(bytes);
    ASSERT_TRUE(plan);
    const std::optional<BackingPlan> limited = best(bytes, {.cost_below = plan->cost + 1e-6});
    ASSERT_TRUE(limited);
    EXPECT_EQ(limited->begin, plan->begin);
    EXPECT_EQ(limited->cost, plan->cost);
    const std::optional<BackingPlan> below = best(bytes, {.cost_below = plan->cost});
    EXPECT_TRUE(!below || below->cost < plan->cost) << "of many windows, the tries go to others";
    const std::optional<BackingPlan> settled = best(bytes, {.may_grow = false});
    EXPECT_TRUE(!settled || settled->new_pages == 0);
    EXPECT_TRUE(settled || plan->new_pages != 0);
    live.push_back(&take(*plan));
    while (live.size() > 100 || (live.size() > 40 && random() % 4 != 0)) {
      const std::size_t i = random() % live.size();
      hand.free(*live[i]);
      live.erase(live.begin() + static_cast<std::ptrdiff_t>(i));
    }
    ASSERT_EQ(hand.validate(), "");
  }
}

}  // namespace
}  // namespace cachalot
