#include "blocks/page_map.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <set>
#include <thread>
#include <vector>

#include "base/bytes.h"
#include "blocks/block.h"
#include "tests/resident_memory.h"

namespace cachalot {
namespace {

constexpr Address kBase = Address{0x7f00} << 32;

struct Blocks {
  PageMap map;
  BlockSlab slab{0, map.memory()};

  Block& hand_out(Address address, std::size_t bytes) {
    Block& block = slab.make();
    block = {address, bytes | Block::kAllocated, bytes & Block::kRequestedBits, 0, nullptr, nullptr, nullptr, {}};
    map.set(block);
    return block;
  }
};

constexpr std::size_t kSegment = 2 * kMiB;

TEST(PageMap, AddressesThatNeverComeAgainCostNothingInTheLongRun) {
  Blocks blocks;
  std::size_t after_one = 0;
  for (Address i = 0; i < 5000; ++i) {  // 10 GiB
    const Address begin = kBase + i * kSegment;
    blocks.map.enter(begin, kSegment);
    Vector<Block*> all;
    for (const Address at : {0u, 512u, 4096u, 8704u, 1u << 17, 1u << 20})
      all.push_back(&blocks.hand_out(begin + at, 512));
    for (Block* block : all) EXPECT_EQ(blocks.map.find(block->address), block);
    blocks.map.leave(begin, kSegment);
    for (Block* block : all) {
      EXPECT_EQ(blocks.map.find(block->address), nullptr);
      blocks.slab.retire(*block);
    }
    if (i == 0) after_one = blocks.map.metadata_bytes();
  }
  EXPECT_EQ(blocks.map.metadata_bytes(), after_one);
}

TEST(PageMap, WhatStaysIsFoundWhenItsNeighboursLeave) {
  Blocks blocks;
  Vector<Block*> all;
  for (Address i = 0; i < 6; ++i) {
    blocks.map.enter(kBase + i * kSegment, kSegment);
    all.push_back(&blocks.hand_out(kBase + i * kSegment, 512));
    all.push_back(&blocks.hand_out(kBase + i * kSegment + 512, kSegment - 512));
  }
  for (const Address gone : {1u, 4u, 0u, 5u}) blocks.map.leave(kBase + gone * kSegment, kSegment);
  for (std::size_t i = 0; i < all.size(); ++i) {
    const bool stays = i / 2 == 2 || i / 2 == 3;
    EXPECT_EQ(blocks.map.find(kBase + i / 2 * kSegment + i % 2 * 512), stays ? all[i] : nullptr);
  }
}

// Segments of any size, from a provider, say, may share a slot.
TEST(PageMap, ASlotOfTwoSegmentsStaysWithTheOneThatIsLeft) {
  Blocks blocks;
  const Address second = kBase + 5 * 512;
  blocks.map.enter(kBase, 5 * 512);
  blocks.map.enter(second, 7 * 512);
  blocks.hand_out(kBase, 512);
  Block& stays = blocks.hand_out(second, 512);
  blocks.map.leave(kBase, 5 * 512);
  EXPECT_EQ(blocks.map.find(second), &stays);
  blocks.map.leave(second, 7 * 512);
  EXPECT_EQ(blocks.map.find(second), nullptr);
}

TEST(PageMap, ARangeOverSeveralNodesComesAndGoesAsAWhole) {
  Blocks blocks;
  blocks.map.enter(kBase + kGiB, 7 * kGiB);
  std::vector<Address> addresses;
  for (Address at = kBase + kGiB; at < kBase + 8 * kGiB; at += 700 * kMiB) {
    blocks.hand_out(at, 512);
    addresses.push_back(at);
  }
  const std::size_t before = blocks.map.metadata_bytes();
  blocks.map.leave(kBase + kGiB, 7 * kGiB);
  for (const Address at : addresses) EXPECT_EQ(blocks.map.find(at), nullptr);
  blocks.map.enter(kBase + 64 * kGiB, 7 * kGiB);
  for (const Address at : addresses) blocks.hand_out(at + 63 * kGiB, 1024);
  EXPECT_LE(blocks.map.metadata_bytes(), before + 64 * kKiB);  // blocks, no nodes
}

// The map's root has 8 bytes for each 2 GiB of addresses, a MiB for all there are.
TEST(PageMap, ItsRootHoldsNoMemoryForAddressesThatAreGone) {
  Blocks blocks;
  const auto come_and_go = [&](Address begin) {
    blocks.map.enter(begin, kSegment);
    Block& block = blocks.hand_out(begin, kSegment);
    EXPECT_EQ(blocks.map.find(begin), &block);
    blocks.map.leave(begin, kSegment);
    EXPECT_EQ(blocks.map.find(begin), nullptr);
    blocks.slab.retire(block);
  };
  constexpr Address kTiB = Address{1} << 40;
  const Address kept = 3 * kTiB;
  blocks.map.enter(kept, kSegment);
  Block& stays = blocks.hand_out(kept, kSegment);
  come_and_go(kept + kSegment);
  const std::size_t before = resident_bytes();
  for (Address begin = kTiB; begin < 250 * kTiB; begin += kTiB) come_and_go(begin + kSegment);
  if (kResidentMemoryIsThePrograms) {
    EXPECT_LT(resident_bytes(), before + 400 * kKiB);  // kept, it would be a MiB
  }
  EXPECT_EQ(blocks.map.find(kept), &stays);
}

TEST(PageMap, WhatIsForgottenCostsNothingUntilItIsHandedOutAgain) {
  Blocks blocks;
  const Address end = kBase + (std::size_t{4} << 30);
  blocks.map.enter(kBase, end - kBase);
  Block& below = blocks.hand_out(kBase, 512);
  std::size_t after_one = 0;
  for (Address begin = kBase + kSegment; begin < end; begin += kSegment) {  // over the border of two nodes, too
    Vector<Block*> all;
    for (const Address at : {0u, 512u, 4096u, 1u << 17, 1u << 20}) all.push_back(&blocks.hand_out(begin + at, 512));
    for (Block* block : all) EXPECT_EQ(blocks.map.find(block->address), block);
    blocks.map.forget(begin, kSegment);
    for (Block* block : all) {
      EXPECT_EQ(blocks.map.find(block->address), nullptr);
      blocks.slab.retire(*block);
    }
    if (after_one == 0) after_one = blocks.map.metadata_bytes();
  }
  EXPECT_LE(blocks.map.metadata_bytes(), after_one + 64 * kKiB + 128);  // the second node, aligned to a cache line
  EXPECT_EQ(blocks.map.find(kBase), &below);
  blocks.map.leave(kBase, end - kBase);
  EXPECT_EQ(blocks.map.find(kBase), nullptr);
}

// A find that is on its way while addresses leave comes to some block, or to none. Addresses that stay are found.
TEST(PageMap, AFindMayRaceWithAddressesThatComeAndGo) {
  Blocks blocks;
  blocks.map.enter(kBase, kSegment);
  Block& stays = blocks.hand_out(kBase, 512);
  std::set<const Block*> handed_out = {&stays};
  std::set<const Block*> found;
  std::atomic<bool> over{false};
  std::thread reader([&] {
    while (!over.load(std::memory_order_relaxed)) {
      EXPECT_EQ(blocks.map.find(kBase), &stays);
      for (Address i = 1; i < 8; ++i) {
        if (const Block* const block = blocks.map.find(kBase + i * kSegment + 512)) found.insert(block);
      }
    }
  });
  for (int round = 0; round < 20'000; ++round) {
    const Address begin = kBase + (1 + static_cast<Address>(round) % 7) * kSegment;
    blocks.map.enter(begin, kSegment);
    Block& block = blocks.hand_out(begin + 512, 512);
    handed_out.insert(&block);
    EXPECT_EQ(blocks.map.find(begin + 512), &block);
    blocks.map.leave(begin, kSegment);
    blocks.slab.retire(block);
  }
  over = true;
  reader.join();
  EXPECT_TRUE(std::includes(handed_out.begin(), handed_out.end(), found.begin(), found.end()));
}

TEST(PageMap, FindsNothingWhereNothingWasHandedOut) {
  Blocks blocks;
  EXPECT_EQ(blocks.map.find(kBase), nullptr);
  EXPECT_EQ(blocks.map.find(0), nullptr);
  EXPECT_EQ(blocks.map.find(~Address{0}), nullptr);
  blocks.hand_out(kBase, 512);
  EXPECT_EQ(blocks.map.find(kBase + 512), nullptr);
  EXPECT_EQ(blocks.map.find(kBase + 8 * kGiB), nullptr);
}

TEST(PageMap, FindsEachOfManySmallBlocks) {
  Blocks blocks;
  Vector<Block*> all;
  for (Address i = 0; i < 3000; ++i) all.push_back(&blocks.hand_out(kBase + i * 512, 512));
  for (Address i = 0; i < 3000; ++i) EXPECT_EQ(blocks.map.find(kBase + i * 512), all[i]);
}

TEST(PageMap, FindsBlocksOfEverySizeSideBySide) {
  Blocks blocks;
  Vector<Block*> all;
  Address address = kBase;
  for (int round = 0; round < 40; ++round) {
    for (std::size_t bytes = 512; bytes <= 4 * kMiB; bytes *= 2) {
      all.push_back(&blocks.hand_out(address, bytes));
      address += bytes;
    }
  }
  for (Block* block : all) EXPECT_EQ(blocks.map.find(block->address), block);
}

TEST(PageMap, BlocksOfAPageAndMoreCostNoLeaf) {
  Blocks blocks;
  Block& first = blocks.hand_out(kBase, 4 * kKiB);
  const std::size_t before = blocks.map.metadata_bytes();
  Block& second = blocks.hand_out(kBase + 4 * kKiB, 100 * kKiB);
  Block& third = blocks.hand_out(kBase + 104 * kKiB + 512, 4 * kKiB);
  EXPECT_EQ(blocks.map.metadata_bytes(), before);
  EXPECT_EQ(blocks.map.find(kBase), &first);
  EXPECT_EQ(blocks.map.find(kBase + 4 * kKiB), &second);
  EXPECT_EQ(blocks.map.find(kBase + 104 * kKiB + 512), &third);
}

TEST(PageMap, BlocksOfASlotOfANodeCostNothing) {
  Blocks blocks;
  blocks.hand_out(kBase, 128 * kKiB);
  const std::size_t before = blocks.map.metadata_bytes();
  Vector<Block*> all;
  for (Address i = 1; i < 500; ++i) all.push_back(&blocks.hand_out(kBase + i * (128 * kKiB + 512), 128 * kKiB));
  EXPECT_EQ(blocks.map.metadata_bytes(), before);
  for (Block* block : all) EXPECT_EQ(blocks.map.find(block->address), block);
}

TEST(PageMap, ALargeBlockAndASmallOneMayBeginInOnePage) {
  Blocks blocks;
  Block& small = blocks.hand_out(kBase, 512);
  Block& large = blocks.hand_out(kBase + 512, 2 * kMiB);
  EXPECT_EQ(blocks.map.find(kBase), &small);
  EXPECT_EQ(blocks.map.find(kBase + 512), &large);
  Block& another = blocks.hand_out(kBase + 16 * kMiB + 1024, 2 * kMiB);  // the other order
  Block& late = blocks.hand_out(kBase + 16 * kMiB, 1024);
  EXPECT_EQ(blocks.map.find(kBase + 16 * kMiB), &late);
  EXPECT_EQ(blocks.map.find(kBase + 16 * kMiB + 1024), &another);
}

// A block that is handed out again writes no entry while no other block's can have taken its place.
TEST(PageMap, ABlockHandedOutAgainIsFoundWhateverCameBesideIt) {
  Blocks blocks;
  Block& block = blocks.hand_out(kBase + 512, 2 * kMiB);
  blocks.map.set(block);  // as it was
  EXPECT_EQ(blocks.map.find(kBase + 512), &block);

  Block& before = blocks.hand_out(kBase, 512);  // a smaller one makes a leaf
  blocks.map.set(block);
  EXPECT_EQ(blocks.map.find(kBase + 512), &block);
  EXPECT_EQ(blocks.map.find(kBase), &before);

  Block& split = blocks.hand_out(kBase + 8 * kMiB, 64 * kKiB);
  split.size_and_flags = 1024 | Block::kAllocated;  // split: smaller than a page now
  blocks.map.set(split);
  Block& rest = blocks.hand_out(kBase + 8 * kMiB + 1024, 63 * kKiB);
  EXPECT_EQ(blocks.map.find(kBase + 8 * kMiB), &split);
  EXPECT_EQ(blocks.map.find(kBase + 8 * kMiB + 1024), &rest);
  blocks.slab.retire(rest);
  split.size_and_flags = (64 * kKiB) | Block::kAllocated;  // merged again
  blocks.map.set(split);
  EXPECT_EQ(blocks.map.find(kBase + 8 * kMiB), &split);
}

TEST(PageMap, TheLatestBlockAtAnAddressIsFound) {
  Blocks blocks;
  blocks.hand_out(kBase, 512);
  Block& second = blocks.hand_out(kBase, 4 * kMiB);
  EXPECT_EQ(blocks.map.find(kBase), &second);
}

TEST(PageMap, IsReadWhileItIsWritten) {
  Blocks blocks;
  std::atomic<bool> stop{false};
  std::thread reader([&] {
    while (!stop) {
      for (Address i = 0; i < 64; ++i) {
        const Block* block = blocks.map.find(kBase + i * kMiB / 2);
        if (block != nullptr) {
          EXPECT_EQ(BlockSlab::owner_of(*block), 0);
        }
      }
    }
  });
  for (Address i = 0; i < 64; ++i) {
    for (Address j = 0; j < 16; ++j) blocks.hand_out(kBase + i * kMiB / 2 + j * 1024, i % 2 == 0 ? 512 : 2 * kMiB);
  }
  stop = true;
  reader.join();
}

TEST(BlockSlab, ReusesWhatWasRetired) {
  Blocks blocks;
  Block& block = blocks.slab.make();
  const std::size_t before = blocks.slab.metadata_bytes();
  blocks.slab.retire(block);
  EXPECT_TRUE(block.has(Block::kRetired));
  for (int i = 0; i < 10000; ++i) blocks.slab.retire(blocks.slab.make());
  EXPECT_EQ(blocks.slab.metadata_bytes(), before);
}

TEST(BlockSlab, ABlockKnowsItsDevice) {
  MetadataMemory memory;
  BlockSlab first(0, memory), second(1, memory);
  std::set<Block*> all;
  for (std::size_t i = 0; i < 3 * BlockSlab::kSlots; ++i) {
    Block& a = first.make();
    Block& b = second.make();
    EXPECT_EQ(BlockSlab::owner_of(a), 0);
    EXPECT_EQ(BlockSlab::owner_of(b), 1);
    all.insert({&a, &b});
  }
  EXPECT_EQ(all.size(), 6 * BlockSlab::kSlots);
}

TEST(BlockSlab, DetailsAreMadeOnFirstUse) {
  Blocks blocks;
  Block& block = blocks.slab.make();
  EXPECT_EQ(blocks.slab.find_detail(block), nullptr);
  blocks.slab.detail(block).freed_at = 7;
  ASSERT_NE(blocks.slab.find_detail(block), nullptr);
  EXPECT_EQ(blocks.slab.find_detail(block)->freed_at, 7u);
}

}  // namespace
}  // namespace cachalot
