// ThreadStacks by itself: how much threads keep for themselves, what they count, and recalls.
#include "pool/thread_stacks.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <thread>
#include <vector>

namespace cachalot {
namespace {

struct OwnerOfStacks final : StackOwner {
  explicit OwnerOfStacks(std::optional<std::size_t> high_water = std::nullopt) : stacks(own, free, high_water) {}
  ~OwnerOfStacks() { own.remove_owner(); }
  OwnerOfStacks(const OwnerOfStacks&) = delete;
  OwnerOfStacks& operator=(const OwnerOfStacks&) = delete;
  void retire(SlotStack& stack) override { stacks.retire(stack); }

  const OwnStack own{*this};
  FreeSlots free;
  ThreadStacks stacks;
};

TEST(ThreadStacks, OfSeveralThreadsHoldAQuarterOfTheSlotsTogether) {
  OwnerOfStacks owner;
  owner.stacks.set_pool_slots(24);
  ASSERT_NE(owner.stacks.own(), nullptr);
  EXPECT_EQ(owner.stacks.may_hold(), 24u);  // a lone thread hides them from no other
  std::thread([&] {
    EXPECT_EQ(owner.stacks.own()->limit(), 3u);
    EXPECT_EQ(owner.stacks.may_hold(), 6u);
  }).join();
  EXPECT_EQ(owner.stacks.may_hold(), 24u);
  owner.stacks.set_pool_slots(1000);
  EXPECT_EQ(owner.stacks.may_hold(), SlotStack::kPlaces);
}

TEST(ThreadStacks, HoldHalfOfTheHighWaterMarkTogether) {
  OwnerOfStacks owner(8);
  owner.stacks.set_pool_slots(1000);
  ASSERT_NE(owner.stacks.own(), nullptr);
  EXPECT_EQ(owner.stacks.may_hold(), 4u);
  std::thread([&] {
    EXPECT_EQ(owner.stacks.own()->limit(), 2u);
    EXPECT_EQ(owner.stacks.may_hold(), 4u);
  }).join();
}

// By count() and by what came or went otherwise; no acquire and no release counts it.
TEST(SlotStack, KnowsHowManyTensorsItsThreadHasInUse) {
  SlotStack stack;
  stack.set_limit(8);
  std::vector<PoolSlot> slots(4);
  std::vector<PoolSlot*> places;
  for (PoolSlot& slot : slots) places.push_back(&slot);
  std::copy(places.begin(), places.end(), stack.places_above().begin());
  stack.add_above(4);
  const auto expect = [&](std::int64_t added, std::int64_t change, std::int64_t highest) {
    const ThreadSum::Gathered news = stack.gather();
    EXPECT_EQ(news.added, added);
    EXPECT_EQ(news.change, change);
    EXPECT_EQ(news.highest, highest);
  };
  expect(0, 0, 0);
  for (int i = 3; i >= 1; --i) EXPECT_EQ(stack.acquire(StreamKey()), &slots[static_cast<std::size_t>(i)]);
  EXPECT_TRUE(stack.release(slots[1]));
  expect(3, 2, 3);
  EXPECT_TRUE(stack.release(slots[2]));
  stack.drop_oldest(2);  // they go elsewhere: that is not an acquire
  EXPECT_EQ(&stack.take_top(), &slots[2]);
  expect(0, -1, 0);
  stack.acquired_elsewhere();
  stack.acquired_elsewhere();
  stack.released_elsewhere();
  expect(2, 1, 2);
  EXPECT_TRUE(stack.is_empty());
  EXPECT_EQ(stack.acquire(StreamKey()), nullptr);
  stack.released_elsewhere();
  stack.released_elsewhere();
  stack.released_elsewhere();  // tensors that another thread acquired
  expect(0, -3, 0);
}

TEST(ThreadStacks, AreEmptyAndRefusedWhileARecallLasts) {
  OwnerOfStacks owner;
  std::vector<PoolSlot> slots(4);
  owner.free.reserve(StreamKey(), slots.size());
  owner.stacks.set_pool_slots(slots.size());
  SlotStack* const mine = owner.stacks.own();
  ASSERT_NE(mine, nullptr);
  for (PoolSlot& slot : slots) ASSERT_TRUE(owner.own.try_push(slot));
  EXPECT_FALSE(owner.own.try_push(slots[0]));  // it is full
  owner.stacks.spill(*mine, 2);
  EXPECT_EQ(owner.free.size(), 2u);
  EXPECT_EQ(owner.own.try_pop(StreamKey()), &slots[3]);
  EXPECT_EQ(owner.free.pop_any(), &slots[1]);  // the older half went
  {
    const StackRecall recall(owner.stacks);
    const StackRecall another(owner.stacks);
    EXPECT_EQ(owner.stacks.first_broken_rule(slots.size()), "");
    EXPECT_EQ(owner.free.size(), 2u);
    EXPECT_EQ(owner.own.try_pop(StreamKey()), nullptr);
    EXPECT_FALSE(owner.own.try_push(slots[3]));
  }
  EXPECT_TRUE(owner.own.try_push(slots[3]));
  EXPECT_EQ(owner.own.try_pop(StreamKey()), &slots[3]);
}

}  // namespace
}  // namespace cachalot
