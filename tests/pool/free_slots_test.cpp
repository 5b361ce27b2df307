// FreeSlots by itself: places, order, and streams that are forgotten.
#include "pool/pool_slots.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

namespace cachalot {
namespace {

StreamKey key(std::uint64_t id) { return StreamKey::of_id(id); }

TEST(FreeSlots, TheSlotOfAStreamThatCameLastIsFoundFirst) {
  FreeSlots free;
  std::vector<PoolSlot> slots(3);
  for (PoolSlot& slot : slots) slot.stream = key(7);
  slots[2].stream = key(8);
  free.reserve(key(7), 2);
  free.reserve(key(8), 1);
  for (PoolSlot& slot : slots) free.push(slot);
  EXPECT_EQ(free.first_broken_rule(), "");
  EXPECT_EQ(free.size(), 3u);
  EXPECT_EQ(free.pop(key(9)), nullptr);
  EXPECT_EQ(free.pop(key(7)), &slots[1]);
  EXPECT_EQ(free.pop(key(7)), &slots[0]);
  EXPECT_EQ(free.pop(key(7)), nullptr);
  EXPECT_EQ(free.pop_any(), &slots[2]);
  EXPECT_EQ(free.pop_any(), nullptr);
  EXPECT_EQ(free.first_broken_rule(), "");
}

TEST(FreeSlots, ManyAtOnceComeUnderTheirStreamsAndGoInTheirOrder) {
  FreeSlots free;
  std::vector<PoolSlot> slots(5);
  std::vector<PoolSlot*> all;
  for (PoolSlot& slot : slots) {
    slot.stream = key(all.size() == 3 ? 8 : 7);
    all.push_back(&slot);
  }
  free.reserve(key(7), 4);
  free.reserve(key(8), 1);
  free.push(all);
  EXPECT_EQ(free.first_broken_rule(), "");
  EXPECT_EQ(free.size(), 5u);
  std::vector<PoolSlot*> places(3);
  EXPECT_EQ(free.pop(key(9), places), 0u);
  EXPECT_EQ(free.pop(key(7), places), 3u);
  EXPECT_EQ(places, (std::vector<PoolSlot*>{all[1], all[2], all[4]}));  // those that came last
  EXPECT_EQ(free.pop(key(7), places), 1u);
  EXPECT_EQ(places[0], all[0]);
  EXPECT_EQ(free.size(), 1u);
  EXPECT_EQ(free.pop(key(8), places), 1u);
  EXPECT_EQ(free.pop(key(8), places), 0u);
  EXPECT_EQ(free.first_broken_rule(), "");
}

TEST(FreeSlots, StreamsWithoutSlotsAreForgottenTheOneLookedUpLastIncluded) {
  FreeSlots free;
  for (std::uint64_t id = 1; id <= 64; ++id) {
    free.reserve(key(id), 1);
    free.unreserve(key(id), 1);
  }
  const std::size_t bytes = free.metadata_bytes();
  free.reserve(key(65), 1);  // no room for one more stream: all others go
  EXPECT_EQ(free.first_broken_rule(), "");
  EXPECT_LT(free.metadata_bytes(), bytes / 2);
  free.reserve(key(64), 2);
  EXPECT_EQ(free.reserved(key(64)), 2u);
  EXPECT_EQ(free.reserved(), 3u);
  EXPECT_EQ(free.first_broken_rule(), "");
}

}  // namespace
}  // namespace cachalot
