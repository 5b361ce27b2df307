#include "blocks/block_pool.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <functional>
#include <iterator>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/bytes.h"

namespace cachalot {
namespace {

Block free_block(Address address, std::size_t bytes) { return {address, bytes, 0, 0, nullptr, nullptr, nullptr, {}}; }

TEST(FreeBins, OfNothingFindNothing) {
  const FreeBins bins;
  EXPECT_TRUE(bins.empty());
  EXPECT_EQ(bins.best_fit(512), nullptr);
  EXPECT_EQ(bins.largest(), nullptr);
}

TEST(FreeBins, BestFitPrefersTheSmallestThatIsLargeEnough) {
  Block small = free_block(0x10000, 1024), fitting = free_block(0x20000, 4096), large = free_block(0x30000, 8192);
  FreeBins bins;
  for (Block* block : {&large, &small, &fitting}) bins.insert(*block);
  EXPECT_EQ(bins.best_fit(2048), &fitting);
  EXPECT_EQ(bins.best_fit(4096), &fitting);
  EXPECT_EQ(bins.best_fit(4608), &large);
  EXPECT_EQ(bins.best_fit(8704), nullptr);
  EXPECT_EQ(bins.largest(), &large);
}

TEST(FreeBins, BestFitPrefersTheLowerAddressAmongEquals) {
  Block low = free_block(0x10000, 4096), middle = free_block(0x20000, 4096), high = free_block(0x30000, 4096);
  FreeBins bins;
  for (Block* block : {&high, &low, &middle}) bins.insert(*block);
  EXPECT_EQ(bins.best_fit(512), &low);
  bins.remove(low);
  EXPECT_EQ(bins.best_fit(512), &middle);
  bins.insert(low);  // the newest is compared with the others
  EXPECT_EQ(bins.best_fit(512), &low);
}

TEST(FreeBins, SizesOfOneBinAreToldApart) {
  // 1 MiB and 1 MiB + 512 share a bin of 16 KiB width.
  Block exact = free_block(0x900000, kMiB), larger = free_block(0x100000, kMiB + 512),
        other = free_block(0x4000000, kMiB + 1024);
  FreeBins bins;
  for (Block* block : {&larger, &exact, &other}) bins.insert(*block);
  EXPECT_EQ(bins.best_fit(kMiB), &exact);
  EXPECT_EQ(bins.best_fit(kMiB + 1), &larger);
  EXPECT_EQ(bins.best_fit(kMiB + 1024), &other);
  EXPECT_EQ(bins.best_fit(kMiB + 1536), nullptr);
}

// All but one of the blocks of a full leaf may end on one side when it is parted.
TEST(FreeBins, BlocksOfOneSizeMayLieAnywhere) {
  for (const bool ascending : {true, false}) {
    std::deque<Block> blocks;
    for (Address address = 512; address < Address{1} << 47; address += address / 1024 * 512 + 512)
      blocks.push_back(free_block(address, kKiB));
    if (!ascending) std::ranges::reverse(blocks);
    FreeBins bins;
    for (Block& block : blocks) bins.insert(block);
    ASSERT_EQ(bins.validate(), "");
    for (Block& block : blocks) bins.remove(block);
    ASSERT_EQ(bins.validate(), "");
    EXPECT_TRUE(bins.empty());
  }
}

TEST(FreeBins, ARequestNeedNotBeAMultipleOfTheGranularity) {
  Block exact = free_block(Address{0x7f} << 40, kMiB), larger = free_block(0x100000, kMiB + 512);
  FreeBins bins;
  for (Block* block : {&larger, &exact}) bins.insert(*block);
  EXPECT_EQ(bins.best_fit(kMiB + 1), &larger);
  bins.remove(larger);
  EXPECT_EQ(bins.best_fit(kMiB + 1), nullptr);

  Block small = free_block(0x10000, 32 * kKiB), half = free_block(Address{1} << 40, 508 * kMiB);
  for (Block* block : {&small, &half}) bins.insert(*block);
  bins.remove(exact);
  EXPECT_EQ(bins.best_fit(32 * kKiB + 100), &half);
  EXPECT_EQ(bins.best_fit(512 * kMiB - 1), nullptr);
  EXPECT_EQ(bins.best_fit(1), &small);
}

TEST(FreeBins, SizesFromTheSmallestToTheLargestHaveTheirBins) {
  std::deque<Block> blocks;
  FreeBins bins;
  for (int octave = 9; octave < 40; ++octave) {
    blocks.push_back(free_block(Address{1} << octave, std::size_t{1} << octave));
    bins.insert(blocks.back());
  }
  EXPECT_EQ(bins.validate(), "");
  for (int octave = 9; octave < 40; ++octave)
    EXPECT_EQ(bins.best_fit(std::size_t{1} << octave)->size(), std::size_t{1} << octave);
  EXPECT_EQ(bins.largest(), &blocks.back());
  for (int octave = 40; octave < 63; ++octave) EXPECT_EQ(bins.best_fit(std::size_t{1} << octave), nullptr);
}

struct BySizeAndAddress {
  bool operator()(const Block* a, const Block* b) const {
    return std::pair(a->size(), a->address) < std::pair(b->size(), b->address);
  }
};

// A set of blocks in PyTorch's order is the oracle.
class FreeBinsBesideASet {
 public:
  explicit FreeBinsBesideASet(std::uint64_t seed) : random_(seed) {}

  void insert(std::size_t bytes) {
    blocks_.push_back(free_block(next_address(), bytes));
    insert(blocks_.back());
  }
  void insert(Block& block) {
    bins_.insert(block);
    set_.insert(&block);
  }
  Block& remove_any() {
    auto entry = set_.begin();
    std::advance(entry, static_cast<std::ptrdiff_t>(random_() % set_.size()));
    Block& block = **entry;
    set_.erase(entry);
    bins_.remove(block);
    return block;
  }
  void expect_same_fit(std::size_t bytes) {
    Block key = free_block(0, bytes);
    const auto expected = set_.lower_bound(&key);
    ASSERT_EQ(bins_.best_fit(bytes), expected == set_.end() ? nullptr : *expected) << bytes << " bytes";
  }
  void expect_same_order() {
    Vector<const Block*> visited;
    bins_.for_each([&](const Block& block) { visited.push_back(&block); });
    ASSERT_TRUE(std::equal(visited.begin(), visited.end(), set_.begin(), set_.end()));
    ASSERT_EQ(bins_.largest(), set_.empty() ? nullptr : *set_.rbegin());
    ASSERT_EQ(bins_.validate(), "");
  }
  std::size_t size() const { return set_.size(); }
  std::mt19937_64& random() { return random_; }

 private:
  Address next_address() {  // in no order
    Address address;
    do address = (random_() % (1u << 26)) * kBlockGranularity;
    while (!addresses_.insert(address).second);
    return address;
  }
  std::mt19937_64 random_;
  std::deque<Block> blocks_;
  std::set<Address> addresses_;
  FreeBins bins_;
  std::set<Block*, BySizeAndAddress> set_;
};

void compare_with_a_set(std::uint64_t seed, int operations, std::size_t crowd,
                        const std::function<std::size_t(std::mt19937_64&)>& size) {
  SCOPED_TRACE("seed " + std::to_string(seed));
  FreeBinsBesideASet bins(seed);
  for (int i = 0; i < operations; ++i) {
    const bool grow = bins.size() < 2 || (bins.random()() % 100 < (bins.size() < crowd ? 55u : 45u));
    if (grow) {
      bins.insert(size(bins.random()));
    } else {
      Block& block = bins.remove_any();
      if (bins.random()() % 4 == 0) bins.insert(block);
    }
    bins.expect_same_fit(size(bins.random()));
    if (i % 97 == 0) bins.expect_same_order();
    if (::testing::Test::HasFatalFailure()) return;
  }
}

TEST(FreeBins, VisitBlocksOfAtLeastAUnitOnce) {
  constexpr PowerOfTwo kUnit(2 * kMiB);
  constexpr Address kBase = Address{0x7f} << 40;
  std::mt19937_64 random(7);  // NOLINT(cert-msc51-cpp): repeatable
  std::deque<Block> blocks;
  FreeBins bins;
  std::set<const Block*> expected;
  for (Address address = kBase; address < kBase + 4 * kGiB;) {
    const std::size_t bytes = (1 + random() % 256) * 512 << random() % 8;  // up to 16 MiB
    Block& block = blocks.emplace_back(free_block(address, bytes));
    if (bytes >= kUnit.bytes()) expected.insert(&block);
    bins.insert(block);
    address += bytes;
  }
  std::multiset<const Block*> visited;
  bins.for_each_of_at_least(kUnit, [&](const Block& block) { visited.insert(&block); });
  EXPECT_TRUE(std::equal(visited.begin(), visited.end(), expected.begin(), expected.end()));
  EXPECT_LT(expected.size(), blocks.size());
}

TEST(FreeBins, AgreeWithASetOnAFewSizes) {  // trees of leaves
  for (std::uint64_t seed = 1; seed <= 4; ++seed) {
    compare_with_a_set(seed, 4000, 300, [](std::mt19937_64& random) { return 512 * (1 + random() % 3); });
  }
}

// Trees of three levels, grown and emptied to the last block.
TEST(FreeBins, AgreeWithASetOnThousandsOfEqualBlocks) {
  FreeBinsBesideASet bins(5);
  for (int i = 0; i < 6000; ++i) bins.insert(1024);
  bins.expect_same_order();
  while (bins.size() > 0) {
    bins.remove_any();
    bins.expect_same_fit(512);
    if (bins.size() % 499 == 0) bins.expect_same_order();
    if (HasFatalFailure()) return;
  }
  for (int i = 0; i < 40; ++i) bins.insert(1024);
  bins.expect_same_order();
}

TEST(FreeBins, AgreeWithASetOnSizesOfOneBin) {
  for (std::uint64_t seed = 11; seed <= 14; ++seed) {
    compare_with_a_set(seed, 4000, 200, [](std::mt19937_64& random) { return 8 * kMiB + 512 * (random() % 200); });
  }
}

TEST(FreeBins, AgreeWithASetOnSizesOfEveryOctave) {
  for (std::uint64_t seed = 21; seed <= 24; ++seed) {
    compare_with_a_set(seed, 4000, 200, [](std::mt19937_64& random) {
      return round_up((std::size_t{1} << (9 + random() % 31)) - random() % 256, 512) +
             (random() % 2 == 0 ? 0 : 512 * (random() % 200));
    });
  }
}

}  // namespace
}  // namespace cachalot
