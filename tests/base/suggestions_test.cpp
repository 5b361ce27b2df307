#include "base/suggestions.h"

#include <gtest/gtest.h>

#include <array>
#include <string>
#include <string_view>

namespace cachalot {
namespace {

constexpr std::array<std::string_view, 4> kCommands = {"replay", "snapshot", "simulate", "compare"};
constexpr std::array<std::string_view, 3> kKeys = {"max_split_size_mb", "max_non_split_rounding_mb", "heap"};
constexpr std::array<std::string_view, 4> kGpus = {"a100", "a100-80", "rtx4090", "l4"};

TEST(EditDistance, CountsInsertedDroppedReplacedAndSwappedLetters) {
  EXPECT_EQ(edit_distance("", ""), 0u);
  EXPECT_EQ(edit_distance("replay", ""), 6u);
  EXPECT_EQ(edit_distance("", "replay"), 6u);
  EXPECT_EQ(edit_distance("simulat", "simulate"), 1u);
  EXPECT_EQ(edit_distance("simulatee", "simulate"), 1u);
  EXPECT_EQ(edit_distance("simulade", "simulate"), 1u);
  EXPECT_EQ(edit_distance("simualte", "simulate"), 1u);
  EXPECT_EQ(edit_distance("kitten", "sitting"), 3u);
}

TEST(EditDistance, TakesUpperForLowerCaseAndDashesForUnderscores) {
  EXPECT_EQ(edit_distance("A100", "a100"), 0u);
  EXPECT_EQ(edit_distance("max-split", "max_split"), 0u);
}

TEST(NearestWord, IsTheOneAtTheLeastDistance) {
  EXPECT_EQ(nearest_word("simulat", kCommands), "simulate");
  EXPECT_EQ(nearest_word("snapshots", kCommands), "snapshot");
  EXPECT_EQ(nearest_word("erplay", kCommands), "replay");
  EXPECT_EQ(nearest_word("a10", kGpus), "a100");
  EXPECT_EQ(nearest_word("RTX-4090", kGpus), "rtx4090");
  EXPECT_EQ(nearest_word("max_split_size", kKeys), "max_split_size_mb");
}

TEST(NearestWord, IsTheShortestThatBeginsWithAnUnfinishedOne) {
  EXPECT_EQ(nearest_word("max_split", kKeys), "max_split_size_mb");
  EXPECT_EQ(nearest_word("sim", kCommands), "simulate");
  EXPECT_EQ(nearest_word("rtx", kGpus), "rtx4090");
  EXPECT_EQ(nearest_word("si", kCommands), "");
}

TEST(NearestWord, IsEmptyWhereNoneIsNear) {
  EXPECT_EQ(nearest_word("frobnicate", kCommands), "");
  EXPECT_EQ(nearest_word("", kCommands), "");
  EXPECT_EQ(nearest_word("x", kGpus), "");
  EXPECT_EQ(nearest_word(std::string(300, 'a'), kCommands), "");
  EXPECT_EQ(nearest_word("simulate", {}), "");
}

TEST(DidYouMean, AsksOrSaysNothing) {
  EXPECT_EQ(did_you_mean("simulat", kCommands), "did you mean 'simulate'?");
  EXPECT_EQ(did_you_mean("frobnicate", kCommands), "");
}

}  // namespace
}  // namespace cachalot
