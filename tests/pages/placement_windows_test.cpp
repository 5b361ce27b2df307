// Placement against every window, in random heaps: no other costs less, and each plan keeps the rules.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/format.h"
#include "pages/placement.h"
#include "tests/pages/pages_by_hand.h"
#include "tests/scale.h"

namespace cachalot {
namespace {

// Returns the first error of a plan, or "": its window gets all the memory it lacks, once, from idle or new memory, and
// nothing is mapped over mapped memory.
std::string broken_rule(PageHeap& heap, const BackingPlan& plan) {
  const PhysicalPages& physical = heap.pages();
  const std::size_t page = heap.page_bytes();
  std::map<Address, PageId> shown;  // as the plan would have it; kBlocked: a new page
  const PageRange& range = *plan.range;
  for (std::size_t i = 0; i < range.shown.size(); ++i) {
    if (range.shown[i] != 0) shown[range.base + i * page] = range.shown[i];
  }
  for (const BackingPlan::Mapping& drop : plan.drops) {
    for (std::uint32_t i = 0; i < physical.handle(drop.handle).pages; ++i) {
      if (physical.handle(drop.handle).home == drop.at) return formatted("handle {} is at home there", drop.handle);
      if (shown.erase(drop.at + i * page) == 0) return formatted("{:#x} is dropped, where nothing is", drop.at);
    }
  }
  for (const BackingPlan::Move& move : plan.moves) {
    for (std::uint32_t i = 0; !move.is_mapped && i < physical.handle(move.handle).pages; ++i) {
      const Address at = move.to + i * page;
      if (!shown.emplace(at, physical.page_of(move.handle, i)).second) return formatted("{:#x} is mapped twice", at);
    }
  }
  std::map<Address, PageId> comes;  // to a slot: a page; kBlocked: a new one
  std::size_t new_pages = 0;
  for (const BackingPlan::Growth& growth : plan.growths) {
    new_pages += growth.pages;
    for (std::uint32_t i = 0; i < growth.pages; ++i) {
      const Address at = growth.at + i * page;
      if (!shown.emplace(at, PageHeap::kBlocked).second) return formatted("{:#x} is mapped twice", at);
      comes.emplace(at, PageHeap::kBlocked);
    }
  }
  if (new_pages != plan.new_pages) return formatted("{} new pages are counted as {}", new_pages, plan.new_pages);
  const Address window_begin = plan.begin - plan.begin % page;
  std::set<HandleId> moved;
  for (const BackingPlan::Move& move : plan.moves) {
    const PhysicalHandle& handle = physical.handle(move.handle);
    if (!moved.insert(move.handle).second) return formatted("handle {} moves twice", move.handle);
    if (heap.end_of(handle) > window_begin && handle.home < plan.end)
      return formatted("handle {} leaves the window", move.handle);
    if (move.to < window_begin || move.to + physical.bytes(handle) >= plan.end + page)
      return formatted("handle {} reaches beyond the window", move.handle);
    for (std::uint32_t i = 0; i < handle.pages; ++i) {
      const PageId id = physical.page_of(move.handle, i);
      const Address to = move.to + i * page;
      if (!comes.emplace(to, id).second) return formatted("two pages come to {:#x}", to);
      if (shown[to] != id) return formatted("page {} is not mapped at {:#x}", id, to);
    }
    for (const Block* block = &heap.first_block(handle.home);; block = block->next) {
      if (!block->is_free() || !block->arena->may_use(*block)) return formatted("handle {} is in use", move.handle);
      if (block->end() >= heap.end_of(handle)) break;
    }
  }
  for (Address at = window_begin; at < plan.end; at += page) {
    const PageId now = heap.shown_at(range, at);
    const bool has_memory =
        now != 0 && now != PageHeap::kBlocked && physical.view_at(now, at) == physical.handle_of(now).home;
    if (has_memory != (comes.count(at) == 0)) return formatted("{:#x} has no memory, or more than one page", at);
  }
  return "";
}

class RandomPlacement : public testing::Test {
 protected:
  // The least cost of all windows, each filled by itself: those at the start of a piece of a hole or at its end.
  double least_cost(std::size_t bytes, const PlacementRules& rules) {
    Backing backing(hand.pages, hand.costs);
    backing.begin_search(hand.pools(), rules);
    double least = std::numeric_limits<double>::infinity();
    windows_ = 0;
    const auto consider = [&](const Window& window) {
      ++windows_;
      const Address first = round_down(window.begin, kPage);
      WindowGroup group{window.range, first, round_up(window.end, kPage), std::nullopt};
      const std::optional<Lack> lack = backing.lack_of(window, group);
      if (!lack) return;
      std::size_t taken = 0;
      for (Address at = first; at < window.end; at += kPage) {
        const bool is_whole = window.begin <= at && at + kPage <= window.end;
        taken += is_whole || !backing.is_live(*hand.range, at) ? 1 : 0;
      }
      if (!rules.may_move) taken = lack->slots;  // then it is not known which are idle
      const double stranded = static_cast<double>(taken) - static_cast<double>(bytes) / kPage;
      if (!backing.fill(window, stranded)) return;
      EXPECT_LE(backing.lower_bound(*lack, stranded), backing.plan().cost + 1e-9);
      if (rules.may_grow || backing.plan().new_pages == 0) least = std::min(least, backing.plan().cost);
    };
    const auto may_hold = [](const Block& block) {
      return block.is_gap() || (block.is_free() && block.arena->may_use(block));
    };
    const Block* block = hand.range->tail != nullptr ? hand.range->tail : hand.heap.segments().rbegin()->second;
    while (block->prev->is_gap() || !block->prev->is_edge()) block = block->prev;
    while (block->is_gap() || !block->is_edge()) {
      const Block* const first = block;
      bool has_gap = false;
      for (; (block->is_gap() || !block->is_edge()) && may_hold(*block); block = block->next) {
        has_gap = has_gap || block->is_gap();
      }
      if (first == block) {
        block = block->next;
        continue;
      }
      if (!has_gap) continue;
      const bool is_last = block->is_edge() && !block->is_gap();
      const Address end = is_last ? hand.range->end() : block->address;
      for (const Block* piece = first; piece != block; piece = piece->next) {
        if (piece->address + bytes <= end) consider({hand.range, piece->address, piece->address + bytes});
      }
      if (is_last && hand.range->tail != nullptr) {
        const Address top = std::max(hand.range->top, hand.range->tail->address);
        if (top + bytes <= end) consider({hand.range, top, top + bytes});
      } else if (end - first->address >= bytes) {
        consider({hand.range, end - bytes, end});
      }
    }
    return least;
  }
  // All handles without a live byte go back.
  void release_idle() {
    PhysicalPages& physical = hand.pages.pages();
    const Vector<HandleId> idle = hand.pages.idle_handles(hand.pools());
    hand.pages.claim_handles(idle);
    hand.pages.forget_memory(idle, [](const PageHeap::IdleMemory&) {});
    for (const HandleId id : idle) {
      const Vector<View> views = physical.handle(id).views;
      for (const View& view : views) {
        hand.pages.hide(view.address, physical.bytes(physical.handle(id)));
        physical.remove_view(id, view.address);
      }
      physical.remove(id);
    }
  }

  // All that was freed is done.
  void finish_all_work() {
    for (const Arena* each : {&hand.arena, &hand.other}) hand.clock_of(*each).everything_is_done(each->epoch);
  }

  static constexpr std::size_t kPage = PagesByHand::kPage;
  PagesByHand hand;
  Placement placement{hand.pages, hand.costs};
  std::size_t windows_ = 0;
};

// Allocates and frees at random, on two streams of which one sees only a part of the other's free memory; each plan
// keeps the rules, and where windows are few, no other costs less.
TEST_F(RandomPlacement, CostsNoMoreThanAnyOtherWindow) {
  const std::uint64_t seed = seed_or(7);
  SCOPED_TRACE(formatted("seed {}", seed));
  std::mt19937_64 random(seed);
  const auto below = [&](std::size_t limit) { return static_cast<std::size_t>(random() % limit); };
  constexpr std::size_t kFewWindows = 16;  // all of which are looked at
  Vector<Block*> live;
  std::size_t compared = 0;
  std::size_t without_growth = 0;
  for (std::size_t step = 0; step < scaled(3000); ++step) {
    SCOPED_TRACE(formatted("step {}", step));
    if (below(8) == 0) finish_all_work();
    if (below(12) == 0) release_idle();
    if (live.size() > 7 || (!live.empty() && below(2) == 0)) {
      std::swap(live[below(live.size())], live.back());
      if (below(4) == 0) ++live.back()->arena->epoch;
      hand.free(*live.back());
      live.pop_back();
      continue;
    }
    const std::size_t bytes = (1 + below(below(4) == 0 ? 40 : 9)) * (below(2) == 0 ? kPage : kPage / 4);
    hand.arena.reach = {Reach::Kind::all};
    hand.other.reach = {below(3) == 0 ? Reach::Kind::all : Reach::Kind::until, hand.other.epoch - 1};
    PlacementRules rules{.may_move = below(5) != 0,
                         .may_drop = below(5) != 0,
                         .may_grow = below(4) != 0,
                         .handle_bytes = kPage * (1 + below(6))};
    const double least = least_cost(bytes, rules);
    const std::optional<BackingPlan> plan = placement.best(hand.arena, hand.pools(), bytes, rules);
    if (windows_ <= kFewWindows) {
      ++compared;
      ASSERT_EQ(plan.has_value(), least != std::numeric_limits<double>::infinity());
    }
    if (!plan) continue;
    ASSERT_EQ(broken_rule(hand.pages, *plan), "");
    if (windows_ <= kFewWindows) {
      ASSERT_NEAR(plan->cost, least, 1e-9) << formatted("at {:#x}", plan->begin);
    }
    if (!rules.may_grow) ++without_growth;
    Arena& owner = below(3) == 0 ? hand.other : hand.arena;
    const Address begin = plan->begin;
    hand.execute(*plan, owner);
    live.push_back(&hand.take(begin, bytes));
    ASSERT_EQ(hand.validate(), "");
  }
  EXPECT_GT(compared, scaled(500));
  EXPECT_GT(without_growth, scaled(50));
}

}  // namespace
}  // namespace cachalot
