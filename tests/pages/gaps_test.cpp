// The list of a range's gaps by itself.
#include "pages/page_heap.h"

#include <gtest/gtest.h>

#include <cstddef>

namespace cachalot {
namespace {

Block gap_at(Address address, std::size_t bytes) {
  Block gap{};
  gap.address = address;
  gap.size_and_flags = bytes;
  return gap;
}

class GapsOfARange : public testing::Test {
 protected:
  GapsOfARange() {
    gaps.add(second);
    gaps.add(first);
  }

  Block first = gap_at(0x1000, 0x1000);
  Block second = gap_at(0x4000, 0x2000);
  Gaps gaps;
};

TEST_F(GapsOfARange, LieByAddress) {
  ASSERT_EQ(gaps.count(), 2u);
  EXPECT_EQ(gaps[0].block, &first);
  EXPECT_EQ(gaps[1].block, &second);
}

TEST_F(GapsOfARange, AreFoundFromAnAddressOn) {
  EXPECT_EQ(gaps.first_from(0x1000), 0u);
  EXPECT_EQ(gaps.first_from(0x1200), 1u);
  EXPECT_EQ(gaps.first_from(0x4200), 2u);
}

TEST_F(GapsOfARange, AreFoundUntilAnAddress) {
  EXPECT_EQ(gaps.last_until(0x0E00), nullptr);
  EXPECT_EQ(gaps.last_until(0x1000), &first);
  EXPECT_EQ(gaps.last_until(0x3E00), &first);
  EXPECT_EQ(gaps.last_until(0x9000), &second);
}

TEST_F(GapsOfARange, AreFoundAtAnAddressOrBehindIt) {
  EXPECT_EQ(gaps.at_or_behind(0x0E00), &first);
  EXPECT_EQ(gaps.at_or_behind(0x1E00), &first);
  EXPECT_EQ(gaps.at_or_behind(0x2000), &second);
  EXPECT_EQ(gaps.at_or_behind(0x5E00), &second);
  EXPECT_EQ(gaps.at_or_behind(0x6000), nullptr);
}

TEST_F(GapsOfARange, BecomeOneThatCoversThem) {
  Block all = gap_at(0x0800, 0x6000);
  gaps.add(all);
  ASSERT_EQ(gaps.count(), 1u);
  EXPECT_EQ(gaps[0].address, 0x0800u);
  EXPECT_EQ(gaps[0].block, &all);
}

TEST_F(GapsOfARange, MoveWhereTheyBeginLater) {
  Block rest = gap_at(0x4800, 0x1800);
  gaps.move(0x4000, rest);
  ASSERT_EQ(gaps.count(), 2u);
  EXPECT_EQ(gaps[1].address, 0x4800u);
  EXPECT_EQ(gaps[1].block, &rest);
}

TEST_F(GapsOfARange, GoOneByOne) {
  gaps.remove(0x1000);
  ASSERT_EQ(gaps.count(), 1u);
  EXPECT_EQ(gaps[0].block, &second);
  gaps.remove(0x4000);
  EXPECT_EQ(gaps.count(), 0u);
  EXPECT_EQ(gaps.at_or_behind(0), nullptr);
}

}  // namespace
}  // namespace cachalot
