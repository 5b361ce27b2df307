#include "cachalot/cub_scratch.h"

#include <gtest/gtest.h>

#include <utility>
#include <vector>

#include "tests/allocator/testing.h"

namespace cachalot {
namespace {

// A function with CUB's two phases, and what it saw.
struct TwoPhases {
  std::size_t needs = 0;
  int size_error = 0;
  int work_error = 0;
  std::vector<void*> worked_in = {};

  int operator()(void* temp, std::size_t& bytes) {
    if (temp == nullptr) {
      bytes = needs;
      return size_error;
    }
    EXPECT_EQ(bytes, needs);
    worked_in.push_back(temp);
    return work_error;
  }
};

// The declarations of a program's CUDA runtime.
enum class RuntimeError { none, unsupported };
const char* cudaGetErrorName(RuntimeError error) {
  return error == RuntimeError::unsupported ? "cudaErrorUnsupported" : "cudaSuccess";
}

TEST(CubScratch, ACallGetsTheBytesItAskedFor) {
  World world;
  CubScratch scratch(world.allocator);
  EXPECT_EQ(world.allocated(), 0u);
  TwoPhases sort{.needs = 5000};
  scratch(sort);
  ASSERT_EQ(sort.worked_in.size(), 1u);
  EXPECT_GE(world.allocator.requested_size(sort.worked_in[0]), 5000u);
  EXPECT_EQ(scratch.bytes(), 5000u);
}

TEST(CubScratch, TheSteadyStateAllocatesNothing) {
  World world;
  CubScratch scratch(world.allocator);
  TwoPhases sort{.needs = 100'000};
  TwoPhases reduce{.needs = 700};
  scratch(sort);
  const auto allocations = world.allocator.memory_stats().allocation.all.allocated;
  for (int i = 0; i < 100; ++i) {
    scratch(reduce);
    scratch(sort);
  }
  EXPECT_EQ(world.allocator.memory_stats().allocation.all.allocated, allocations);
  EXPECT_EQ(reduce.worked_in.back(), sort.worked_in.front());
}

TEST(CubScratch, SizesThatCreepUpCostAFewAllocations) {
  World world;
  CubScratch scratch(world.allocator);
  for (std::size_t needs = 1000; needs <= 100'000; needs += 100) {
    TwoPhases scan{.needs = needs};
    scratch(scan);
  }
  EXPECT_LE(world.allocator.memory_stats().allocation.all.allocated, 13);  // 1.5 ^ 12 > 100
  EXPECT_LT(scratch.bytes(), 150'000u);
}

TEST(CubScratch, ACallThatNeedsNothingIsStillToldToWork) {
  World world;
  CubScratch scratch(world.allocator);
  TwoPhases nothing{.needs = 0};
  scratch(nothing);
  EXPECT_EQ(nothing.worked_in.size(), 1u);
}

TEST(CubScratch, TheBufferIsOfTheScratchsStream) {
  World world;
  const Stream stream = world.device->new_stream();
  void* buffer = nullptr;
  {
    CubScratch scratch(world.allocator, stream);
    TwoPhases sort{.needs = 4096};
    scratch(sort);
    buffer = sort.worked_in[0];
  }
  EXPECT_NE(world.allocate(4096), buffer);  // of the default stream: that would have to wait
  EXPECT_EQ(world.allocate(4096, stream), buffer);
}

TEST(CubScratch, AnErrorOfTheCallIsThrownAndTheScratchServesOn) {
  World world;
  CubScratch scratch(world.allocator);
  TwoPhases bad_size{.needs = 100, .size_error = 1};
  const std::string size = message_of<CudaError>([&] { scratch(bad_size); });
  EXPECT_CONTAINS(size, "the size query of a CUB call: CUDA_ERROR_INVALID_VALUE");
  EXPECT_EQ(world.allocated(), 0u);
  TwoPhases bad_work{.needs = 100, .work_error = 700};
  const std::string work = message_of<CudaError>([&] { scratch(bad_work); });
  EXPECT_CONTAINS(work, "a CUB call: CUDA_ERROR_ILLEGAL_ADDRESS");
  TwoPhases good{.needs = 100};
  scratch(good);
  EXPECT_EQ(good.worked_in, bad_work.worked_in);
}

TEST(CubScratch, AnErrorIsNamedByTheProgramsOwnRuntime) {
  World world;
  CubScratch scratch(world.allocator);
  const std::string text =
      message_of<CudaError>([&] { scratch([](void*, std::size_t&) { return RuntimeError::unsupported; }); });
  EXPECT_CONTAINS(text, "the size query of a CUB call: cudaErrorUnsupported (code 1)");
}

TEST(CubScratch, WithoutRoomToGrowByHalfItTakesWhatIsNeeded) {
  World world(64 * kMiB);
  CubScratch scratch(world.allocator);
  scratch.reserve(44 * kMiB);
  scratch.reserve(50 * kMiB);
  EXPECT_EQ(scratch.bytes(), 50 * kMiB);
}

TEST(CubScratch, OutOfMemoryLeavesItEmptyAndReadyForLess) {
  World world(64 * kMiB);
  CubScratch scratch(world.allocator);
  scratch.reserve(10 * kMiB);
  out_of_memory([&] { scratch.reserve(100 * kMiB); });
  EXPECT_EQ(scratch.bytes(), 0u);
  EXPECT_EQ(world.allocated(), 0u);
  TwoPhases sort{.needs = kMiB};
  scratch(sort);
  EXPECT_EQ(scratch.bytes(), kMiB);
}

TEST(CubScratch, ItMovesAndGivesBackOnce) {
  World world;
  CubScratch first(world.allocator);
  first.reserve(1000);
  CubScratch second(std::move(first));
  EXPECT_EQ(second.bytes(), 1000u);
  EXPECT_EQ(first.bytes(), 0u);  // NOLINT: it is empty, and says so
  first.reserve(2000);
  first = std::move(second);
  EXPECT_EQ(first.bytes(), 1000u);
  first.release();
  EXPECT_EQ(world.allocated(), 0u);
}

TEST(CubScratch, ADeviceThatIsNotThereIsRefused) {
  World world;
  EXPECT_EQ(refusal([&] { CubScratch scratch(world.allocator, nullptr, 1); }),
            "device 1 is not one of the 1 devices (0 to 0)");
}

}  // namespace
}  // namespace cachalot
