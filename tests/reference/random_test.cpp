// Random programs: the allocator decides as the reference heap does, after every single operation.
// CACHALOT_TEST_SCALE multiplies the number of operations; CACHALOT_TEST_SEED replaces the seed (tests/scale.h).
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <string>

#include "tests/programs/random_program.h"
#include "tests/reference/comparison.h"
#include "tests/scale.h"

namespace cachalot {
namespace {

void expect_agreement(const char* name, std::uint64_t seed, std::size_t operations, const Taste& taste) {
  // Many short programs find more than one long one: a new heap meets the rules from another side.
  constexpr std::size_t kOperationsAProgram = 2000;
  const auto programs = scaled(operations) / kOperationsAProgram + 1;
  for (std::size_t i = 0; i < programs; ++i) {
    const Program program = random_program(seed_or(seed) + i, kOperationsAProgram, taste);
    const std::string trouble = compare_with_reference(program);
    if (trouble.empty()) continue;
    const Program shorter = shortened(program, compare_with_reference);
    FAIL() << name << ", seed " << seed_or(seed) + i << ": " << trouble << "\nShortened, "
           << compare_with_reference(shorter) << "\n"
           << to_text(shorter);
  }
}

class RandomPrograms : public testing::TestWithParam<std::size_t> {};

TEST_P(RandomPrograms, AgreeWithTheReferenceUnderTheseOptions) {
  Taste taste;
  taste.options = kProgramOptions[GetParam()];
  expect_agreement(kProgramOptions[GetParam()], 1000 * GetParam() + 1, 10'000, taste);
}
INSTANTIATE_TEST_SUITE_P(Options, RandomPrograms, testing::Range(std::size_t{0}, kProgramOptions.size()));

TEST(RandomProgramsToo, AgreeWithTheReferenceOnTinyDevices) {
  Taste taste;
  taste.device_mib = {64, 42};
  taste.largest_bytes = std::size_t{24} << 20;
  expect_agreement("tiny devices", 20'001, 20'000, taste);
}

TEST(RandomProgramsToo, AgreeWithTheReferenceOnLargeDevicesThatNeverFill) {
  Taste taste;
  taste.device_mib = {20'000, 20'000};
  taste.most_live = 400;
  expect_agreement("large devices", 30'001, 20'000, taste);
}

TEST(RandomProgramsToo, AgreeWithTheReferenceOnSmallBlocksAlone) {
  Taste taste;
  taste.device_mib = {12, 8};
  taste.largest_bytes = std::size_t{1} << 20;
  expect_agreement("small blocks", 40'001, 20'000, taste);
}

TEST(RandomProgramsToo, AgreeWithTheReferenceOnManyLargeBlocksOfNearlyOneSize) {
  Taste taste;
  taste.device_mib = {20'000, 20'000};
  taste.smallest_bytes = 3.0 * (1 << 20);
  taste.largest_bytes = std::size_t{3} * (1 << 20) + (1 << 16);
  taste.most_live = 800;
  expect_agreement("nearly one large size", 42'001, 20'000, taste);
}

TEST(RandomProgramsToo, AgreeWithTheReferenceOnManySmallBlocksOfAFewSizes) {
  Taste taste;
  taste.device_mib = {20'000, 20'000};
  taste.smallest_bytes = 500;
  taste.largest_bytes = 2000;
  taste.most_live = 1500;
  expect_agreement("a few small sizes", 43'001, 20'000, taste);
}

TEST(RandomProgramsToo, AgreeWithTheReferenceDuringCaptures) {
  Taste taste;
  taste.captures = true;
  expect_agreement("captures", 45'001, 20'000, taste);
}

TEST(RandomProgramsToo, AgreeWithTheReferenceDuringCapturesWhenEverythingChanges) {
  Taste taste;
  taste.device_mib = {160, 96};
  taste.captures = taste.uses_pools = taste.changes_options = taste.donates = true;
  expect_agreement("captures and everything", 46'001, 20'000, taste);
}

TEST(RandomProgramsToo, AgreeWithTheReferenceWhenCallbacksFreeMemory) {
  Taste taste;
  taste.donates = true;
  taste.changes_options = true;
  expect_agreement("callbacks", 47'001, 20'000, taste);
}

TEST(RandomProgramsToo, AgreeWithTheReferenceWhileOptionsChange) {
  Taste taste;
  taste.changes_options = true;
  expect_agreement("changing options", 50'001, 40'000, taste);
}

TEST(RandomProgramsToo, AgreeWithTheReferenceInPrivatePools) {
  Taste taste;
  taste.uses_pools = true;
  expect_agreement("private pools", 60'001, 40'000, taste);
}

TEST(RandomProgramsToo, AgreeWithTheReferenceWhenEverythingChanges) {
  Taste taste;
  taste.device_mib = {160, 96};
  taste.uses_pools = true;
  taste.changes_options = true;
  expect_agreement("everything", 70'001, 40'000, taste);
}

// Plain memory over the page heap is PyTorch's policy, with every option.
TEST(RandomProgramsToo, AgreeWithTheReferenceInPlainMemory) {
  Taste taste;
  taste.device_mib = {160, 96};
  taste.options = "heap:pages,expandable_segments:False";
  taste.captures = taste.uses_pools = taste.changes_options = taste.donates = true;
  expect_agreement("plain memory", 80'001, 40'000, taste);
}

TEST(Programs, CanBePasted) {
  const Program program = random_program(1, 500, Taste{});
  EXPECT_EQ(to_text(program_of(to_text(program))), to_text(program));
  EXPECT_EQ(compare_with_reference(program_of(R"(devices 64 64 options -
allocate 0 1 0 1000
record_stream 0 1 2 0
launch 0 0 2 5000
deallocate 0 1 0 0
allocate 0 2 0 1000
advance 0 0 0 5000
allocate 0 3 0 1000
)")),
            "");
}

}  // namespace
}  // namespace cachalot
