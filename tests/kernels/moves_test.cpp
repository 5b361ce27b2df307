// Tests of the contract of move_blocks against each implementation.
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <random>
#include <vector>

#include "tests/allocator/testing.h"
#include "tests/kernels/subject.h"

namespace cachalot {
namespace {

class MoveContract : public KernelsContract {
 protected:
  // All of the memory, random; and what it is to be once the moves are done.
  Bytes fill_with_noise(unsigned seed = 1) {
    std::mt19937 random(seed);
    Bytes noise(kBytes);
    std::ranges::generate(noise, [&] { return static_cast<unsigned char>(random()); });
    write(begin_, noise);
    return noise;
  }
  Bytes after(const Bytes& before, const std::vector<BlockMove>& moves) const {
    Bytes expected = before;
    for (const BlockMove& move : moves) {
      std::copy_n(before.begin() + at(move.from), move.bytes, expected.begin() + at(move.to));
    }
    return expected;
  }
  std::ptrdiff_t at(Address address) const { return static_cast<std::ptrdiff_t>(address - begin_); }

  void expect_moved(const std::vector<BlockMove>& moves) {
    const Bytes before = fill_with_noise();
    kernels_->move_blocks(nullptr, moves);
    device_->synchronize();
    ASSERT_TRUE(read(begin_, kBytes) == after(before, moves)) << moves.size() << " moves";
  }
  std::string refusal_of(const std::vector<BlockMove>& moves) {
    return refusal([&] { kernels_->move_blocks(nullptr, moves); });
  }
};

INSTANTIATE_TEST_SUITE_P(Simulated, MoveContract, testing::Values(&simulated_device));
INSTANTIATE_TEST_SUITE_P(Cuda, MoveContract, testing::Values(&gpu));

TEST_P(MoveContract, BlocksOfAnyAlignmentAndLengthArriveAndNothingElseChanges) {
  for (const std::size_t bytes : {0u, 1u, 7u, 16u, 31u, 511u, 4099u, 70'001u}) {
    std::vector<BlockMove> moves;
    for (std::size_t i = 0; i < 12; ++i) {
      moves.push_back({begin_ + i * 80'000 + i % 5, begin_ + 2 * kMiB + i * 80'000 + i % 7, bytes});
    }
    expect_moved(moves);
  }
}

TEST_P(MoveContract, AnyNumberOfBlocksIsMovedInOneCall) {
  for (const std::size_t count : {1u, 16u, 17u, 1360u, 1361u, 4000u}) {
    std::vector<BlockMove> moves;
    for (std::size_t i = 0; i < count; ++i) {
      moves.push_back({begin_ + i * 300, begin_ + 2 * kMiB + (count - 1 - i) * 300, 1 + i % 300});
    }
    expect_moved(moves);
  }
}

TEST_P(MoveContract, SourcesMayOverlapOneAnother) {
  expect_moved({{begin_, begin_ + 2 * kMiB, 5000}, {begin_ + 100, begin_ + 3 * kMiB, 5000}});
}

TEST_P(MoveContract, NeighboursAreNoOverlap) {
  expect_moved({{begin_ + 512, begin_, 512}, {begin_ + 1536, begin_ + 1024, 512}});
}

TEST_P(MoveContract, AnOverlapIsRefusedWithBothMovesAndNothingIsCopied) {
  const Bytes before = fill_with_noise();
  const Address far = begin_ + kMiB;
  EXPECT_CONTAINS(refusal_of({{begin_, far, 64}, {begin_ + 64, begin_ + 128, 64}, {begin_ + 256, far + 63, 64}}),
                  "move 2 writes to ");
  EXPECT_CONTAINS(refusal_of({{begin_, far, 64}, {begin_ + 64, begin_ + 128, 64}, {begin_ + 256, far + 63, 64}}),
                  "and move 0 to ");
  EXPECT_CONTAINS(refusal_of({{begin_, far, 64}, {far + 63, begin_ + 128, 64}}), "move 0 writes to ");
  EXPECT_CONTAINS(refusal_of({{begin_, far, 64}, {far + 63, begin_ + 128, 64}}), "and move 1 reads ");
  EXPECT_CONTAINS(refusal_of({{begin_, begin_ + 63, 64}}), "no destination may overlap another, or a source");
  EXPECT_CONTAINS(refusal_of({{begin_, begin_, 64}}), "and move 0 reads ");
  // One that reaches far hides none behind it.
  EXPECT_CONTAINS(refusal_of({{far, begin_, kMiB}, {far, begin_ + 8, 8}, {far, begin_ + 64, 8}}), "and move 0 to ");
  EXPECT_TRUE(read(begin_, kBytes) == before);
}

TEST_P(MoveContract, BadMemoryIsNamedAndEmptyMovesAreNothing) {
  const Bytes before = fill_with_noise();
  EXPECT_EQ(refusal_of({{begin_, begin_ + 64, 16}, {0, begin_ + 128, 16}}),
            "the source of move 1 has 16 bytes and begins at a null address");
  EXPECT_EQ(refusal_of({{begin_, 0, 16}}), "the destination of move 0 has 16 bytes and begins at a null address");
  EXPECT_CONTAINS(refusal_of({{begin_, ~Address{0}, 16}}), "more than there are addresses");
  kernels_->move_blocks(nullptr, {});
  kernels_->move_blocks(nullptr, std::vector<BlockMove>{{0, 0, 0}, {begin_, begin_, 0}});
  EXPECT_TRUE(read(begin_, kBytes) == before);
}

TEST(HostKernels, BlocksAreMovedAfterTheWorkOfTheStream) {
  const auto device = std::make_shared<SimulatedDevice>(World::config_of(kGiB));
  const DeviceMemory memory(device, 4096);
  const Stream stream = device->new_stream();
  const std::int64_t done = device->launch(stream, 1'000'000);
  kernels_for(device)->move_blocks(stream, std::vector<BlockMove>{{memory.address(), memory.address() + 512, 512}});
  EXPECT_GE(device->clock_ns(), done);
}

// Create, record and synchronize an event, destroy it; then two copies a block.
TEST(HostKernels, AMoveThatFailsHalfwayLeavesTheSourcesAndMayBeRepeated) {
  const auto device = std::make_shared<SimulatedDevice>(World::config_of(kGiB));
  const DeviceMemory memory(device, 4096);
  const auto kernels = kernels_for(device);
  const Address first = memory.address();
  const std::vector<BlockMove> moves = {{first, first + 2048, 512}, {first + 512, first + 2560, 512}};
  const Bytes content(1024, 5);
  Bytes held(content.size());
  for (std::uint64_t nth = 1; nth <= 8; ++nth) {
    device->copy_from_host(first, content.data(), content.size());
    device->set_faults({{.nth = nth, .out_of_memory = false, .code = 700}});
    EXPECT_THROW(kernels->move_blocks(nullptr, moves), CudaError) << nth;
    device->set_faults({});
    device->copy_to_host(held.data(), first, held.size());
    EXPECT_EQ(held, content) << nth;
    kernels->move_blocks(nullptr, moves);
    device->copy_to_host(held.data(), first + 2048, held.size());
    EXPECT_EQ(held, content) << nth;
    device->fill(first + 2048, 0, 1024, nullptr);
  }
}

// On the simulated runtime, too, which checks that a device could run them.
TEST(CudaKernels, ListsOfMovesAreLaunchedOneAfterTheOther) {
  const auto devices = cuda_devices();
  if (devices.empty()) GTEST_SKIP() << "no GPU here";
  const DeviceMemory memory(devices.front(), 8 * kMiB);
  const auto kernels = kernels_for(devices.front());
  std::vector<BlockMove> moves;
  for (std::size_t i = 0; i < 3000; ++i)
    moves.push_back({memory.address() + i * 512, memory.address() + 4 * kMiB + i * 512, 512});
  for (int i = 0; i < 3; ++i) kernels->move_blocks(nullptr, moves);
  devices.front()->synchronize();
}

}  // namespace
}  // namespace cachalot
