#include "blocks/block_heap.h"

#include <gtest/gtest.h>

#include "base/bytes.h"

namespace cachalot {
namespace {

constexpr Address kSegmentBase = Address{1} << 40;

class BlockHeapTest : public ::testing::Test {
 protected:
  Block& segment(Address address, std::size_t bytes) { return heap.add_segment(address, bytes, arena); }
  void TearDown() override { EXPECT_EQ(heap.validate(), ""); }
  static void expect(const InactiveSplit& change, std::int64_t blocks, std::int64_t bytes) {
    EXPECT_EQ(change.blocks, blocks);
    EXPECT_EQ(change.bytes, bytes);
  }

  PageMap page_map;
  BlockPool pool{PoolKind::small, {}, nullptr};
  Arena& arena = pool.add(immortal_stream(nullptr));
  BlockHeap heap{0, page_map};
};

TEST_F(BlockHeapTest, ASegmentBeginsAsOneFreeBlock) {
  Block& block = segment(kSegmentBase, 2 * kMiB);
  EXPECT_TRUE(block.is_free());
  EXPECT_FALSE(block.is_split());
  EXPECT_EQ(arena.bins.best_fit(512), &block);
}

TEST_F(BlockHeapTest, ASplitKeepsTheLowPartAndFreesTheRest) {
  Block& block = segment(kSegmentBase, 2 * kMiB);
  expect(heap.allocate(block, 4096, 4000, true), 1, 2 * kMiB - 4096);
  EXPECT_EQ(block.address, kSegmentBase);
  EXPECT_EQ(block.size(), 4096u);
  EXPECT_EQ(block.requested, 4000u);
  EXPECT_EQ(page_map.find(kSegmentBase), &block);
  const Block* rest = arena.bins.best_fit(512);
  ASSERT_NE(rest, nullptr);
  EXPECT_EQ(rest->address, kSegmentBase + 4096);
  EXPECT_EQ(rest->size(), 2 * kMiB - 4096);
}

TEST_F(BlockHeapTest, APartInsideABlockLeavesBothEndsFree) {
  Block& block = segment(kSegmentBase, 2 * kMiB);
  InactiveSplit change;
  Block& part = heap.allocate_inside(block, kSegmentBase + kMiB, 4096, 4000, true, change);
  expect(change, 2, 2 * kMiB - 4096);
  EXPECT_EQ(part.address, kSegmentBase + kMiB);
  EXPECT_EQ(part.size(), 4096u);
  EXPECT_EQ(part.requested, 4000u);
  EXPECT_EQ(page_map.find(kSegmentBase + kMiB), &part);
  EXPECT_TRUE(block.is_free());
  EXPECT_EQ(block.size(), kMiB);
  EXPECT_EQ(arena.bins.best_fit(512)->size(), kMiB - 4096);
  expect(heap.put_back(part), -2, -static_cast<std::int64_t>(2 * kMiB - 4096));
  EXPECT_EQ(arena.bins.best_fit(512)->size(), 2 * kMiB);
}

TEST_F(BlockHeapTest, APartInsideASplitBlockChangesTheFiguresOfWhatIsSplit) {
  Block& block = segment(kSegmentBase, 2 * kMiB);
  heap.allocate(block, kMiB, kMiB, true);
  Block& rest = *arena.bins.best_fit(512);
  InactiveSplit change;
  Block& part = heap.allocate_inside(rest, rest.address + 512, kMiB - 512, 1, false, change);
  expect(change, 0, 512 - static_cast<std::int64_t>(kMiB));
  EXPECT_EQ(part.end(), kSegmentBase + 2 * kMiB);
  EXPECT_EQ(&heap.allocate_inside(rest, rest.address, 512, 1, false, change), &rest);
  expect(change, -1, -512);
}

TEST_F(BlockHeapTest, ASegmentThatWentLeavesNothingInThePageMap) {
  const auto come_and_go = [&](Address address) {
    Block& block = segment(address, 2 * kMiB);
    heap.allocate(block, 2 * kMiB, 2 * kMiB, false);
    heap.put_back(block);
    heap.remove_segment(block);
  };
  come_and_go(kSegmentBase);
  const std::size_t bytes = page_map.metadata_bytes();
  for (Address i = 1; i <= 8; ++i) come_and_go(kSegmentBase + i * 4 * kGiB);
  EXPECT_EQ(page_map.metadata_bytes(), bytes);
}

TEST_F(BlockHeapTest, TakingAWholeSegmentLeavesNoSplit) {
  Block& block = segment(kSegmentBase, 2 * kMiB);
  expect(heap.allocate(block, 2 * kMiB, 2 * kMiB, false), 0, 0);
  EXPECT_EQ(arena.bins.best_fit(512), nullptr);
  expect(heap.put_back(block), 0, 0);
}

TEST_F(BlockHeapTest, TakingFromASplitSegmentCountsOnlyBytes) {
  heap.allocate(segment(kSegmentBase, 2 * kMiB), 4096, 4096, true);
  expect(heap.allocate(*arena.bins.best_fit(512), 1024, 1024, true), 0, -1024);
  Block& last = *arena.bins.best_fit(512);
  const auto size = static_cast<std::int64_t>(last.size());
  expect(heap.allocate(last, last.size(), 1, false), -1, -size);
}

// A free block is cut so that another starts in its slot of the page map, and is handed out there, before the two merge again.
TEST_F(BlockHeapTest, ABlockThatWasCutIsFoundWhenItIsHandedOutAgain) {
  BlockPool in_ranges{PoolKind::small, {}, nullptr, nullptr, /*has_ranges=*/true};
  Block& low = heap.add_segment(kSegmentBase, 2 * kMiB, in_ranges.add(immortal_stream(nullptr)));
  heap.allocate(low, kMiB, kMiB, true);
  heap.put_back(low);
  heap.claim(low);
  Block& high = heap.cut(low, kSegmentBase + 4096);
  heap.unclaim(low);
  high.arena = &in_ranges.add(immortal_stream(reinterpret_cast<Stream>(1)));
  heap.unclaim(high);
  heap.allocate(high, high.size(), high.size(), false);
  EXPECT_EQ(page_map.find(kSegmentBase + 4096), &high);
  high.arena = low.arena;
  heap.put_back(high);
  EXPECT_EQ(low.size(), 2 * kMiB);
  heap.allocate(low, kMiB, kMiB, true);
  EXPECT_EQ(page_map.find(kSegmentBase), &low);
}

TEST_F(BlockHeapTest, FreeNeighboursMergeOnBothSides) {
  Block& low = segment(kSegmentBase, 2 * kMiB);
  heap.allocate(low, 4096, 4096, true);
  Block& middle = *arena.bins.best_fit(512);
  heap.allocate(middle, 4096, 77, true);
  expect(heap.put_back(low), 1, 4096);
  expect(heap.put_back(middle), -2, -(4096 + static_cast<std::int64_t>(2 * kMiB) - 8192));
  EXPECT_EQ(heap.segments().at(kSegmentBase), &low);  // the first block stays the same object
  EXPECT_EQ(low.size(), 2 * kMiB);
  EXPECT_FALSE(low.is_split());
  EXPECT_EQ(low.requested, 77u);  // its last user's
}

TEST_F(BlockHeapTest, AnAddressFindsItsSegment) {
  Block& first = segment(kSegmentBase, 2 * kMiB);
  Block& second = segment(kSegmentBase + 8 * kMiB, 20 * kMiB);
  EXPECT_EQ(heap.segment_at(kSegmentBase - 1), nullptr);
  EXPECT_EQ(heap.segment_at(kSegmentBase), &first);
  EXPECT_EQ(heap.segment_at(kSegmentBase + 2 * kMiB - 1), &first);
  EXPECT_EQ(heap.segment_at(kSegmentBase + 2 * kMiB), nullptr);
  EXPECT_EQ(heap.segment_at(kSegmentBase + 27 * kMiB), &second);
}

TEST_F(BlockHeapTest, ARemovedSegmentIsForgotten) {
  heap.remove_segment(segment(kSegmentBase, 2 * kMiB));
  EXPECT_TRUE(heap.segments().empty());
  EXPECT_EQ(arena.bins.best_fit(512), nullptr);
}

TEST_F(BlockHeapTest, AgesAreThoseOfTheLastTimeABlockBecameFree) {
  heap.start_keeping_ages();
  Block& block = segment(kSegmentBase, 2 * kMiB);
  EXPECT_EQ(heap.freed_at(block), 0u);
  pool.clock = 5;
  heap.allocate(block, 2 * kMiB, 1, false);
  heap.put_back(block);
  EXPECT_EQ(heap.freed_at(block), 5u);
}

TEST_F(BlockHeapTest, ValidateNamesABrokenTiling) {
  Block& block = segment(kSegmentBase, 2 * kMiB);
  heap.allocate(block, 4096, 4096, true);
  block.size_and_flags -= 512;  // planted
  EXPECT_NE(heap.validate().find("gap or overlap"), std::string::npos);
  block.size_and_flags += 512;
}

}  // namespace
}  // namespace cachalot
