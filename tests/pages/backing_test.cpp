// Backing by itself: what fills a window of addresses, and what that costs.
#include "pages/backing.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "tests/pages/pages_by_hand.h"

namespace cachalot {
namespace {

// In pages, as Backing counts the driver's time.
constexpr double kCreateCost = 0.002 * 29;
constexpr double kMapCost = 0.002 * 2;
constexpr double kAccessCost = 0.002 * 38;
constexpr double kUnmapCost = 0.002 * 34;

class BackingOfAWindow : public testing::Test {
 protected:
  static constexpr std::size_t kPage = PagesByHand::kPage;
  static Address at(std::size_t slot) { return PagesByHand::at(slot); }
  Window window(std::size_t slot, std::size_t count) const { return {hand.range, at(slot), at(slot + count)}; }

  // All of the request's stream is within reach, as usual; of the other stream, nothing.
  void search(const PlacementRules& rules = {.handle_bytes = 4 * kPage}) {
    hand.arena.reach = {Reach::Kind::all};
    backing.begin_search(hand.pools(), rules);
  }
  // A window of four slots, of which an idle page joins two parts: one call of each kind backs it.
  void expect_bound_of_joined_parts(const Lack& parts) {
    const std::optional<Lack> lack = lack_of(window(0, 4));
    ASSERT_TRUE(lack);
    EXPECT_EQ(lack->stretches, parts.stretches);
    EXPECT_EQ(lack->drops, parts.drops);
    ASSERT_TRUE(backing.fill(window(0, 4), 0));
    EXPECT_NEAR(backing.plan().cost, kMapCost + kAccessCost + kUnmapCost, 1e-9);
    EXPECT_LE(backing.lower_bound(*lack, 0), backing.plan().cost + 1e-9);
  }
  std::optional<Lack> lack_of(const Window& window) {
    WindowGroup group{window.range, window.begin, window.end, std::nullopt};
    return backing.lack_of(window, group);
  }
  void expect_plan(const std::vector<BackingPlan::Mapping>& drops, const std::vector<BackingPlan::Growth>& growths,
                   const std::vector<BackingPlan::Move>& moves) {
    const BackingPlan& plan = backing.plan();
    ASSERT_EQ(plan.drops.size(), drops.size());
    ASSERT_EQ(plan.growths.size(), growths.size());
    ASSERT_EQ(plan.moves.size(), moves.size());
    for (std::size_t i = 0; i < drops.size(); ++i) {
      EXPECT_EQ(plan.drops[i].handle, drops[i].handle) << "drop " << i;
      EXPECT_EQ(plan.drops[i].at, drops[i].at) << "drop " << i;
    }
    std::size_t new_pages = 0;
    for (std::size_t i = 0; i < growths.size(); ++i) {
      EXPECT_EQ(plan.growths[i].at, growths[i].at) << "growth " << i;
      EXPECT_EQ(plan.growths[i].pages, growths[i].pages) << "growth " << i;
      new_pages += growths[i].pages;
    }
    EXPECT_EQ(plan.new_pages, new_pages);
    std::size_t new_views = 0;
    for (std::size_t i = 0; i < moves.size(); ++i) {
      EXPECT_EQ(plan.moves[i].handle, moves[i].handle) << "move " << i;
      EXPECT_EQ(plan.moves[i].to, moves[i].to) << "move " << i;
      EXPECT_EQ(plan.moves[i].is_mapped, moves[i].is_mapped) << "move " << i;
      new_views += moves[i].is_mapped ? 0 : 1;
    }
    EXPECT_EQ(plan.new_views, new_views);
    hand.execute(plan, hand.arena);
  }

  PagesByHand hand;
  Backing backing{hand.pages, hand.costs};
};

// --- pages that are mapped there -------------------------------------------------------------------------------------

TEST_F(BackingOfAWindow, BringsInAPageThatIsAtHomeRightBehindIt) {
  const HandleId handle = hand.grow(0, 1);
  hand.move(handle, 1);
  search();
  const std::optional<Lack> lack = lack_of(window(0, 1));
  ASSERT_TRUE(lack);
  EXPECT_EQ(lack->slots, 1u);
  EXPECT_EQ(lack->to_map, 0u);
  EXPECT_EQ(lack->drops, 0u);
  ASSERT_TRUE(backing.fill(window(0, 1), 0.25));
  EXPECT_FALSE(backing.plan().calls_driver());
  EXPECT_EQ(backing.plan().cost, 0.25);
  expect_plan({}, {}, {{handle, at(0), true}});
}

TEST_F(BackingOfAWindow, BringsInAPageThatIsAtHomeRightBeforeIt) {
  const HandleId handle = hand.grow(0, 1);
  hand.leave_view(handle, 1);
  search();
  ASSERT_TRUE(backing.fill(window(1, 1), 0));
  EXPECT_FALSE(backing.plan().calls_driver());
  expect_plan({}, {}, {{handle, at(1), true}});
}

TEST_F(BackingOfAWindow, BringsInNeighboursOfOneHandleTogether) {
  const HandleId two = hand.grow(10, 2);
  const HandleId next = hand.grow(20, 1);
  ASSERT_EQ(hand.page(next), hand.page(two) + 2);
  hand.leave_view(two, 0);
  hand.leave_view(next, 2);
  search();
  ASSERT_TRUE(backing.fill(window(0, 3), 0));
  EXPECT_FALSE(backing.plan().calls_driver());
  expect_plan({}, {}, {{two, at(0), true}, {next, at(2), true}});
}

TEST_F(BackingOfAWindow, LeavesAPageThatIsAtHomeInItWhereItIs) {
  const HandleId handle = hand.grow(0, 1);
  hand.move(handle, 1);
  hand.clock_of(hand.arena).everything_is_done(hand.arena.epoch);
  hand.grow_live(2, 1);
  search();
  ASSERT_TRUE(backing.fill(window(0, 2), 0));
  expect_plan({{handle, at(0)}}, {{at(0), 1}}, {});
}

TEST_F(BackingOfAWindow, BringsInAPageOnceThoughTwoSlotsShowIt) {
  const HandleId handle = hand.grow(9, 1);
  hand.leave_view(handle, 1);
  hand.leave_view(handle, 0);
  hand.grow_live(2, 1);
  hand.clock_of(hand.arena).everything_is_done(hand.arena.epoch);
  search();
  ASSERT_TRUE(backing.fill(window(0, 2), 0));
  expect_plan({{handle, at(1)}}, {{at(1), 1}}, {{handle, at(0), true}});
}

TEST_F(BackingOfAWindow, TakesNothingOfAHandleThatIsIdleInPart) {
  const HandleId handle = hand.grow(9, 2);
  hand.leave_view(handle, 0);
  hand.clock_of(hand.arena).everything_is_done(hand.arena.epoch);
  hand.take(at(10), kPage);  // its second page; the first is idle
  hand.grow_live(2, 1);
  search();
  ASSERT_TRUE(backing.fill(window(0, 2), 0));
  expect_plan({{handle, at(0)}}, {{at(0), 2}}, {});
}

TEST_F(BackingOfAWindow, TakesNothingThroughAViewThatReachesBeyondIt) {
  const HandleId handle = hand.grow(9, 3);
  hand.leave_view(handle, 0);
  hand.clock_of(hand.arena).everything_is_done(hand.arena.epoch);
  search();
  ASSERT_TRUE(backing.fill(window(0, 2), 0));
  expect_plan({{handle, at(0)}}, {{at(0), 2}}, {});
}

// --- views in the way ------------------------------------------------------------------------------------------------

TEST_F(BackingOfAWindow, FailsWhereAViewIsInTheWayWhoseLastUseIsNotDone) {
  const HandleId handle = hand.grow(9, 1);
  hand.leave_view(handle, 0);
  hand.take(at(9), kPage);
  search();
  EXPECT_FALSE(lack_of(window(0, 1)));
  EXPECT_FALSE(backing.fill(window(0, 1), 0));
  EXPECT_TRUE(lack_of(window(1, 1)));

  hand.clock_of(hand.arena).everything_is_done(hand.arena.epoch);
  search();
  const std::optional<Lack> lack = lack_of(window(0, 1));
  ASSERT_TRUE(lack);
  EXPECT_EQ(lack->drops, 1u);
  ASSERT_TRUE(backing.fill(window(0, 1), 0));
  EXPECT_NEAR(backing.plan().cost, 1 + kCreateCost + kMapCost + kAccessCost + kUnmapCost, 1e-9);
  expect_plan({{handle, at(0)}}, {{at(0), 1}}, {});
}

TEST_F(BackingOfAWindow, FailsWhereAViewIsInTheWayAndNoneMayBeDropped) {
  const HandleId handle = hand.grow(9, 1);
  hand.leave_view(handle, 0);
  hand.take(at(9), kPage);
  hand.clock_of(hand.arena).everything_is_done(hand.arena.epoch);
  search({.may_drop = false, .handle_bytes = kPage});
  EXPECT_FALSE(lack_of(window(0, 1)));
  EXPECT_FALSE(backing.fill(window(0, 1), 0));
}

TEST_F(BackingOfAWindow, FailsWhereTheDeviceDidNotUnmap) {
  hand.pages.block(at(0), kPage);
  search();
  EXPECT_FALSE(lack_of(window(0, 1)));
  hand.pages.hide(at(0), kPage);
  search();
  EXPECT_TRUE(lack_of(window(0, 1)));
}

TEST_F(BackingOfAWindow, CountsAViewThatIsInTheWayOfSeveralSlotsOnce) {
  const HandleId handle = hand.grow(9, 3);
  hand.leave_view(handle, 0);
  hand.take(at(9), 3 * kPage);
  hand.grow_live(3, 1);
  hand.clock_of(hand.arena).everything_is_done(hand.arena.epoch);
  search();
  const std::optional<Lack> lack = lack_of(window(0, 3));
  ASSERT_TRUE(lack);
  EXPECT_EQ(lack->drops, 1u);
  EXPECT_EQ(lack->slots, 3u);
  EXPECT_EQ(lack->stretches, 1u);
  ASSERT_TRUE(backing.fill(window(0, 3), 0));
  expect_plan({{handle, at(0)}}, {{at(0), 3}}, {});
}

// --- pages from elsewhere --------------------------------------------------------------------------------------------

TEST_F(BackingOfAWindow, PrefersIdlePagesToNewOnes) {
  const HandleId handle = hand.grow(9, 3);
  hand.grow_live(4, 1);
  search();
  ASSERT_TRUE(backing.fill(window(0, 4), 0));
  EXPECT_NEAR(backing.plan().cost, 1 + kCreateCost + 2 * kMapCost + kAccessCost, 1e-9);
  expect_plan({}, {{at(3), 1}}, {{handle, at(0), false}});
}

TEST_F(BackingOfAWindow, GrowsWhereNoneMayBeMoved) {
  hand.grow(9, 3);
  search({.may_move = false, .handle_bytes = 4 * kPage});
  EXPECT_EQ(backing.idle().count(), 0u);
  ASSERT_TRUE(backing.fill(window(0, 4), 0));
  expect_plan({}, {{at(0), 4}}, {});
}

TEST_F(BackingOfAWindow, GrowsByHandlesOfALimitedSize) {
  search({.handle_bytes = 2 * kPage});
  ASSERT_TRUE(backing.fill(window(0, 5), 0));
  EXPECT_NEAR(backing.plan().cost, 5 + 3 * kCreateCost + 3 * kMapCost + kAccessCost, 1e-9);
  expect_plan({}, {{at(0), 2}, {at(2), 2}, {at(4), 1}}, {});
}

TEST_F(BackingOfAWindow, TakesTheLargestHandlesFirst) {
  const HandleId one = hand.grow(20, 1);
  const HandleId four = hand.grow(30, 4);
  const HandleId two = hand.grow(40, 2);
  hand.grow_live(7, 1);
  search();
  ASSERT_TRUE(backing.fill(window(0, 7), 0));
  EXPECT_NEAR(backing.plan().cost, 3 * kMapCost + kAccessCost, 1e-9);
  expect_plan({}, {}, {{four, at(0), false}, {two, at(4), false}, {one, at(6), false}});
}

TEST_F(BackingOfAWindow, TakesNoHandleThatIsLargerThanWhatIsLeft) {
  const HandleId four = hand.grow(20, 4);
  const HandleId two = hand.grow(30, 2);
  search();
  ASSERT_TRUE(backing.fill(window(0, 3), 0));
  expect_plan({}, {{at(2), 1}}, {{two, at(0), false}});
  EXPECT_EQ(hand.pages.pages().handle(four).home, at(20));
}

TEST_F(BackingOfAWindow, TakesNoPagesFromItsOwnMemory) {
  const HandleId handle = hand.grow(0, 2);
  hand.grow_live(4, 1);
  search();
  ASSERT_TRUE(backing.fill(window(0, 4), 0));
  expect_plan({}, {{at(2), 2}}, {});
  EXPECT_EQ(hand.pages.pages().handle(handle).views.size(), 1u);
}

TEST_F(BackingOfAWindow, PaysForAccessOncePerStretch) {
  hand.grow_live(1, 1);
  hand.grow_live(3, 1);
  hand.free(hand.pages.first_block(at(1)));
  search({.may_move = false, .handle_bytes = 4 * kPage});
  const std::optional<Lack> lack = lack_of(window(0, 3));
  ASSERT_TRUE(lack);
  EXPECT_EQ(lack->slots, 2u);
  EXPECT_EQ(lack->stretches, 2u);
  ASSERT_TRUE(backing.fill(window(0, 3), 0));
  EXPECT_NEAR(backing.plan().cost, 2 + 2 * (kCreateCost + kMapCost + kAccessCost), 1e-9);
  expect_plan({}, {{at(0), 1}, {at(2), 1}}, {});
}

// --- reach -----------------------------------------------------------------------------------------------------------

TEST_F(BackingOfAWindow, TakesOfOtherStreamsWhatIsWithinReach) {
  hand.other.epoch = 5;
  const HandleId early = hand.grow(20, 1, hand.other);
  hand.other.epoch = 6;
  const HandleId late = hand.grow(30, 1, hand.other);
  hand.grow_live(2, 1);
  hand.other.reach = {};
  search();
  EXPECT_EQ(backing.idle().count(), 0u);
  hand.other.reach = {Reach::Kind::until, 5};
  search();
  EXPECT_EQ(backing.idle().count(), 1u);
  ASSERT_TRUE(backing.fill(window(0, 2), 0));
  EXPECT_EQ(backing.plan().new_pages, 1u);
  ASSERT_EQ(backing.plan().moves.size(), 1u);
  EXPECT_EQ(backing.plan().moves[0].handle, early);

  hand.other.reach = {Reach::Kind::until, 6};
  search();
  EXPECT_EQ(backing.idle().count(), 2u);
  EXPECT_TRUE(backing.idle().has(hand.page(late)));
  ASSERT_TRUE(backing.fill(window(0, 2), 0));
  EXPECT_EQ(backing.plan().new_pages, 0u);
  hand.execute(backing.plan(), hand.arena);
}

TEST_F(BackingOfAWindow, TakesAPageOfTwoStreamsIfBothAreWithinReach) {
  const HandleId handle = hand.grow(20, 1);
  hand.other.epoch = 5;
  hand.pages.hand_over(hand.pages.first_block(at(20)), at(20) + kMiB, at(21), hand.other);
  hand.other.reach = {Reach::Kind::until, 4};
  search();
  EXPECT_FALSE(backing.idle().has(hand.page(handle)));
  EXPECT_TRUE(backing.is_live(*hand.range, at(20)));
  hand.other.reach = {Reach::Kind::until, 5};
  search();
  EXPECT_TRUE(backing.idle().has(hand.page(handle)));
  EXPECT_FALSE(backing.is_live(*hand.range, at(20)));
  EXPECT_FALSE(backing.is_live(*hand.range, at(21))) << "nothing is mapped";
}

// --- the least cost of a window --------------------------------------------------------------------------------------

TEST_F(BackingOfAWindow, LacksTheSameWhetherItsSlotsAreLookedAtAloneOrWithOthers) {
  const HandleId way = hand.grow(20, 2);
  hand.leave_view(way, 3);
  hand.clock_of(hand.arena).everything_is_done(hand.arena.epoch);
  hand.take(at(20), 2 * kPage);
  hand.leave_view(hand.grow(30, 1), 6);
  hand.grow_live(1, 1);
  search();
  WindowGroup group{hand.range, at(0), at(9), std::nullopt};
  for (std::size_t first = 0; first < 9; ++first) {
    for (std::size_t slots = 1; first + slots <= 9; ++slots) {
      const std::optional<Lack> alone = lack_of(window(first, slots));
      const std::optional<Lack> together = backing.lack_of(window(first, slots), group);
      ASSERT_TRUE(alone && together);
      EXPECT_EQ(together->slots, alone->slots) << first << " " << slots;
      EXPECT_EQ(together->to_map, alone->to_map) << first << " " << slots;
      EXPECT_EQ(together->stretches, alone->stretches) << first << " " << slots;
      EXPECT_LE(together->drops, alone->drops) << first << " " << slots;
      EXPECT_GE(together->drops + 1, alone->drops) << first << " " << slots;
    }
  }
}

TEST_F(BackingOfAWindow, PaysOnceForViewsThatLieSideBySide) {
  const HandleId one = hand.grow(20, 1);
  const HandleId two = hand.grow(30, 1);
  hand.leave_view(one, 0);
  hand.leave_view(two, 1);
  hand.take(at(20), kPage);
  hand.take(at(30), kPage);
  hand.grow_live(2, 1);
  hand.clock_of(hand.arena).everything_is_done(hand.arena.epoch);
  search();
  EXPECT_EQ(lack_of(window(0, 2))->drops, 1u);
  ASSERT_TRUE(backing.fill(window(0, 2), 0));
  EXPECT_NEAR(backing.plan().cost, 2 + kCreateCost + kMapCost + kAccessCost + kUnmapCost, 1e-9);
  expect_plan({{one, at(0)}, {two, at(1)}}, {{at(0), 2}}, {});
}

TEST_F(BackingOfAWindow, CostsWhatNewPagesCostIfItHasNone) {
  search();
  ASSERT_TRUE(backing.fill(window(0, 5), 0.5));
  EXPECT_EQ(backing.plan().cost, backing.cost_of_new(5, 0.5));
  EXPECT_NEAR(backing.cost_of_new(5, 0.5), 5.5 + 2 * (kCreateCost + kMapCost) + kAccessCost, 1e-9);
}

TEST_F(BackingOfAWindow, CostsNotLessThanItsLowerBound) {
  hand.grow(20, 3);
  hand.grow(30, 2);
  hand.grow_live(100, 1);
  for (std::size_t slots = 1; slots < 8; ++slots) {
    search();
    const std::optional<Lack> lack = lack_of(window(0, slots));
    ASSERT_TRUE(lack);
    ASSERT_TRUE(backing.fill(window(0, slots), 0.125));
    const double bound = backing.lower_bound(*lack, 0.125);
    EXPECT_LE(bound, backing.plan().cost) << slots;
    const std::size_t new_pages = slots > 5 ? slots - 5 : 0;
    const double calls = kMapCost + kAccessCost + (new_pages != 0 ? kCreateCost + kMapCost : 0);
    EXPECT_GE(bound, static_cast<double>(new_pages) + 0.125 + calls) << slots;
    EXPECT_LT(bound, static_cast<double>(new_pages) + 0.3) << slots;
  }
  EXPECT_EQ(backing.lower_bound({}, 0.125), 0.125);
}

TEST_F(BackingOfAWindow, CostsNotLessThanItsLowerBoundWhereAnIdlePageJoinsStretches) {
  const HandleId handle = hand.grow(3, 1);
  hand.leave_view(handle, 1);
  hand.clock_of(hand.arena).everything_is_done(hand.arena.epoch);
  hand.grow(20, 3);
  search();
  expect_bound_of_joined_parts({.stretches = 2, .drops = 0});
}

TEST_F(BackingOfAWindow, CostsNotLessThanItsLowerBoundWhereAnIdlePageJoinsViewsInTheWay) {
  const HandleId handle = hand.grow(3, 1);
  const HandleId way = hand.grow(30, 1);
  const HandleId other_way = hand.grow(40, 1);
  hand.leave_view(handle, 1);
  hand.leave_view(way, 0);
  hand.leave_view(other_way, 2);
  hand.take(at(30), kPage);
  hand.take(at(40), kPage);
  hand.clock_of(hand.arena).everything_is_done(hand.arena.epoch);
  hand.grow(20, 3);
  search();
  expect_bound_of_joined_parts({.stretches = 2, .drops = 2});
}

}  // namespace
}  // namespace cachalot
