// Random programs on every heap, with and without failing calls of the device: nothing is lost, no hazard arises.
// CACHALOT_TEST_SCALE multiplies the number of operations; CACHALOT_TEST_SEED replaces the seed (tests/scale.h).
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "tests/programs/player.h"
#include "tests/programs/random_program.h"
#include "tests/reliability/heaps.h"

namespace cachalot {
namespace {

constexpr std::size_t kOperationsAPlay = 2000;
std::string play_quickly(const Program& program) { return play(program, {.validate_every = 16}); }

// Plays `operations` operations; a program that fails is printed as short as it can be made.
void expect_good_plays(std::uint64_t seed, std::size_t operations, const PlayTaste& taste) {
  const std::size_t plays = scaled(operations / kOperationsAPlay);
  for (std::size_t i = 0; i < plays; ++i) {
    const Program program = random_play(seed_or(seed) + i, kOperationsAPlay, taste);
    const std::string trouble = play_quickly(program);
    if (trouble.empty()) continue;
    if (!shortens()) FAIL() << "seed " << seed_or(seed) + i << ": " << trouble;
    const Program shorter = shortened(program, play_quickly);
    FAIL() << "seed " << seed_or(seed) + i << ": " << trouble << "\nShortened: " << play_quickly(shorter) << "\n"
           << to_text(shorter);
  }
}

class Plays : public testing::TestWithParam<const char*> {};

TEST_P(Plays, LeaveNothingBehind) { expect_good_plays(1000, 100'000, {.options = GetParam()}); }

TEST_P(Plays, LeaveNothingBehindWhenCallsFail) {
  expect_good_plays(2000, 100'000, {.options = GetParam(), .faults = 0.05});
}

// Small requests meet the rests of large ones, across the borders of handles, where memory is plenty.
TEST_P(Plays, PlaceMemoryAsAskedFor) {
  for (const std::size_t mib : std::initializer_list<std::size_t>{4096, 24'576, 81'920}) {
    const PlayTaste taste{
        .device_mib = {mib, 512}, .options = GetParam(), .largest_bytes = double{1 << 26}, .placed = 0.5};
    expect_good_plays(3000, 40'000, taste);
  }
}

// With the latencies of a real device the host runs ahead of it, and work is under way wherever memory changes hands.
// CACHALOT_TEST_SCALE=100 makes it the full run, of programs of other seeds.
TEST_P(Plays, HaveNoHazardWhileTheHostRunsAhead) {
  constexpr std::size_t kOperationsAProgram = 200'000;
  const PlayTaste taste{.device_mib = {160, 96}, .options = GetParam(), .most_live = 200};
  const std::size_t operations = scaled(kOperationsAProgram);
  const std::size_t programs = (operations + kOperationsAProgram - 1) / kOperationsAProgram;
  const std::uint64_t first = seed_or(4242);
  for (std::uint64_t seed = first; seed < first + programs; ++seed) {
    SCOPED_TRACE(fmt::format("seed {}", seed));
    const std::size_t length = operations / programs;
    const Program program = random_play(seed, length, taste);
    Player player(program, {.latency = LatencyModel::published(), .validate_every = 50'000});
    ASSERT_EQ(play(program, player), "");
    // The run was not an empty one: frees waited for other streams, memory ran out, tags slept, graphs were restored.
    EXPECT_GT(player.device().count(DeviceCall::event_record), length / 200);
    EXPECT_GT(player.times_out_of_memory(), 0u);
    EXPECT_GT(player.restored(), 0u);
    EXPECT_EQ(player.times_woken() > 0, uses_pages(player.allocator().options()));
  }
}

INSTANTIATE_TEST_SUITE_P(Heaps, Plays, testing::ValuesIn(kHeaps));

TEST(TheHazardChecker, CatchesAUseThatWasNotAnnounced) {
  SimulatedDevice::Config config;
  config.check_hazards = true;
  const auto device = std::make_shared<SimulatedDevice>(config);
  CachingAllocator allocator({device});
  const Stream home = device->new_stream();
  const Stream other = device->new_stream();
  void* ptr = allocator.allocate(1000, 0, home);
  const auto address = reinterpret_cast<Address>(ptr);
  device->handed_out(address, 1000, home);
  device->launch(other, 1'000'000, {{address, 1000}});  // no record_stream
  device->given_back(address);
  allocator.deallocate(ptr);
  ASSERT_EQ(allocator.allocate(1000, 0, home), ptr);
  EXPECT_THROW(device->handed_out(address, 1000, home), HazardError);
  allocator.deallocate(ptr);
}

}  // namespace
}  // namespace cachalot
