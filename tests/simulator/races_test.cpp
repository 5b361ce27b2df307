// Memory of an allocator's blocks that is used again too early (cachalot_sim_block_allocated and its like). The test simulator.races
// runs these with races:1; without it they are skipped.
#include <cstring>

#include "cachalot/simulator.h"
#include "cuda_check.h"

namespace cachalot {
namespace {

constexpr std::size_t kBlock = std::size_t{4} << 20;

class SimulatorRaces : public SimulatorTest {
 protected:
  SimulatorRaces() {
    for (cudaStream_t* stream : {&a_, &b_}) cudaStreamCreateWithFlags(stream, cudaStreamNonBlocking);
    cudaEventCreateWithFlags(&event_, cudaEventDisableTiming);
    cudaMalloc(&memory_, kBlock);
  }
  ~SimulatorRaces() override {
    cudaFree(memory_);
    cudaEventDestroy(event_);
    for (cudaStream_t stream : {a_, b_}) cudaStreamDestroy(stream);
  }
  void SetUp() override {
    const char* const setting = cachalot_sim_setting("races");
    if (setting == nullptr || std::strcmp(setting, "1") != 0) GTEST_SKIP() << "needs races:1 in CACHALOT_SIM";
  }

  std::uint64_t at(std::size_t offset) const { return reinterpret_cast<std::uint64_t>(memory_) + offset; }
  // A stream uses a range. Returns the number of races that are not taken yet.
  std::int64_t use(std::size_t offset, std::uint64_t bytes, cudaStream_t stream, std::uint32_t place) {
    const std::uint64_t ranges[] = {at(offset), bytes};
    EXPECT_EQ(cachalot_sim_launch(stream, kMillisecond), 0);
    return cachalot_sim_blocks_used(ranges, 1, stream, place);
  }
  std::int64_t use(cudaStream_t stream, std::uint32_t place) { return use(0, kBlock, stream, place); }
  void allocate(std::size_t offset = 0, std::uint64_t bytes = kBlock) {
    ASSERT_EQ(cachalot_sim_block_allocated(0, at(offset), bytes), 0);
  }
  void free(std::size_t offset = 0) { ASSERT_EQ(cachalot_sim_block_freed(at(offset)), 0); }
  static cachalot_sim_race take() {
    cachalot_sim_race race{};
    EXPECT_EQ(cachalot_sim_take_race(&race), 1);
    return race;
  }
  // A block of stream a that stream b uses, behind all work before it, and that is free then.
  void use_by_b_and_free() {
    ASSERT_CUDA(cudaDeviceSynchronize());
    allocate();
    ASSERT_EQ(use(b_, 2), 0);
    free();
  }
  // The next block there, which stream a uses. Returns the races.
  std::int64_t use_again() {
    allocate();
    const std::int64_t races = use(a_, 5);
    free();
    return races;
  }

  cudaStream_t a_ = nullptr;
  cudaStream_t b_ = nullptr;
  cudaEvent_t event_ = nullptr;
  void* memory_ = nullptr;
};

TEST_F(SimulatorRaces, ARaceNamesPlacesStreamsAndBlocks) {
  use_by_b_and_free();
  EXPECT_EQ(use_again(), 1);
  const cachalot_sim_race race = take();
  EXPECT_EQ(race.bytes, kBlock);
  EXPECT_EQ(race.used_on, b_);
  EXPECT_EQ(race.reused_on, a_);
  EXPECT_EQ(race.used_at, 2u);
  EXPECT_EQ(race.reused_at, 5u);
  EXPECT_EQ(race.reallocation, race.allocation + 1);
  EXPECT_EQ(race.device, 0);
  EXPECT_STREQ(race.freed_at, "") << "no Python runs";
  cachalot_sim_race none{};
  EXPECT_EQ(cachalot_sim_take_race(&none), 0);
  EXPECT_EQ(use_again(), 0) << "the memory is that of stream a from then on";
}

TEST_F(SimulatorRaces, AWaitOrdersTheTwo) {
  use_by_b_and_free();
  ASSERT_CUDA(cudaEventRecord(event_, b_));
  ASSERT_CUDA(cudaStreamWaitEvent(a_, event_, 0));
  EXPECT_EQ(use_again(), 0);
}

TEST_F(SimulatorRaces, AnEventBeforeTheUseDoesNot) {
  ASSERT_CUDA(cudaEventRecord(event_, b_));
  use_by_b_and_free();
  ASSERT_CUDA(cudaStreamWaitEvent(a_, event_, 0));
  EXPECT_EQ(use_again(), 1);
  take();
}

TEST_F(SimulatorRaces, TheHostOrdersTheTwo) {
  use_by_b_and_free();
  ASSERT_CUDA(cudaStreamSynchronize(b_));
  EXPECT_EQ(use_again(), 0) << "by a wait for the stream";
  use_by_b_and_free();
  ASSERT_CUDA(cudaDeviceSynchronize());
  EXPECT_EQ(use_again(), 0) << "by a wait for the device";
  use_by_b_and_free();
  ASSERT_CUDA(cudaEventRecord(event_, b_));
  while (cudaEventQuery(event_) == cudaErrorNotReady) cudaGetLastError();
  EXPECT_EQ(use_again(), 0) << "by a question about an event";
  use_by_b_and_free();
  while (cudaStreamQuery(b_) == cudaErrorNotReady) cudaGetLastError();
  EXPECT_EQ(use_again(), 0) << "by a question about the stream";
}

TEST_F(SimulatorRaces, TimeAloneOrdersNothing) {
  use_by_b_and_free();
  ASSERT_EQ(cachalot_sim_advance(1000 * kMillisecond), 0);
  EXPECT_EQ(use_again(), 1);
  take();
}

TEST_F(SimulatorRaces, AFunctionOfTheHostComesBehindAllBeforeIt) {
  use_by_b_and_free();
  ASSERT_CUDA(cudaLaunchHostFunc(
      a_, [](void*) {}, nullptr));
  EXPECT_EQ(use_again(), 0);
}

TEST_F(SimulatorRaces, AWaitForTheDeviceCoversStreamsThatWereDestroyed) {
  allocate();
  cudaStream_t gone = nullptr;
  ASSERT_CUDA(cudaStreamCreateWithFlags(&gone, cudaStreamNonBlocking));
  ASSERT_EQ(use(gone, 2), 0);
  ASSERT_CUDA(cudaStreamDestroy(gone));
  free();
  ASSERT_CUDA(cudaDeviceSynchronize());
  EXPECT_EQ(use_again(), 0);
}

TEST_F(SimulatorRaces, BytesWithoutAUseDoNotRace) {
  allocate();
  ASSERT_EQ(use(0, kBlock / 2, b_, 2), 0);
  free();
  allocate(kBlock / 2, kBlock / 2);
  EXPECT_EQ(use(kBlock / 2, kBlock / 2, a_, 5), 0);
  allocate(0, kBlock / 2);
  EXPECT_EQ(use(kBlock / 4, 1, a_, 7), 1);
  take();
  free();
  free(kBlock / 2);
}

TEST_F(SimulatorRaces, MemoryThatWasFreedIsForgotten) {
  use_by_b_and_free();
  ASSERT_CUDA(cudaFree(memory_));
  EXPECT_EQ(use_again(), 0);
  memory_ = nullptr;
}

TEST_F(SimulatorRaces, CapturedWorkIsNotFollowed) {
  use_by_b_and_free();
  allocate();
  ASSERT_CUDA(cudaStreamBeginCapture(a_, cudaStreamCaptureModeRelaxed));
  EXPECT_EQ(use(a_, 5), 0);
  cudaGraph_t graph = nullptr;
  ASSERT_CUDA(cudaStreamEndCapture(a_, &graph));
  ASSERT_CUDA(cudaGraphDestroy(graph));
  EXPECT_EQ(use(a_, 6), 1) << "but the work behind it";
  take();
  free();
}

TEST_F(SimulatorRaces, RangesInNoBlockAreLeftOut) {
  EXPECT_EQ(use(a_, 1), 0);
  EXPECT_EQ(cachalot_sim_block_freed(at(64)), 0);
  const std::uint64_t nowhere[] = {2, 3};
  EXPECT_EQ(cachalot_sim_blocks_used(nowhere, 1, a_, 4), 0);
  use_by_b_and_free();
  allocate(0, kBlock / 2);
  EXPECT_EQ(use(0, kBlock, a_, 5), 0) << "more than the block";
  free();
}

}  // namespace
}  // namespace cachalot
