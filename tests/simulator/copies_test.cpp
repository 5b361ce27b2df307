// The costs of copies and pinning: a fixed time and none, and with copies:published that of the bus. ctest runs these
// tests with either.
#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "cachalot/simulator.h"
#include "cuda_check.h"

namespace cachalot {
namespace {

constexpr std::int64_t kMicrosecond = 1000;
constexpr std::size_t kBytes = 4 * kMib;
constexpr std::int64_t kPinnedNs = 4 * 42 * kMicrosecond;     // of kBytes, as CopyModel::published has it
constexpr std::int64_t kPageableNs = 4 * 105 * kMicrosecond;  // the same
constexpr std::int64_t kCallsNs = 50 * kMicrosecond;          // more than the calls around a copy take

bool copies_take_the_bus() {
  const char* copies = cachalot_sim_setting("copies");
  return copies && std::string(copies) == "published";
}
bool calls_take_time() {
  const char* latency = cachalot_sim_setting("latency");
  return !latency || std::string(latency) != "none";
}

std::int64_t time_of(const std::function<void()>& calls) {
  const std::int64_t before = cachalot_sim_clock_ns();
  calls();
  return cachalot_sim_clock_ns() - before;
}

class SimulatorCopies : public SimulatorTest {
 protected:
  SimulatorCopies() {
    cudaMalloc(&device_, kBytes);
    cudaHostAlloc(&pinned_, kBytes, cudaHostAllocDefault);
    for (cudaStream_t* stream : {&up_, &down_}) cudaStreamCreateWithFlags(stream, cudaStreamNonBlocking);
  }
  ~SimulatorCopies() override {
    for (cudaStream_t stream : {up_, down_}) cudaStreamDestroy(stream);
    cudaFreeHost(pinned_);
    cudaFree(device_);
  }

  void copy_up(const void* from) { EXPECT_CUDA(cudaMemcpyAsync(device_, from, kBytes, cudaMemcpyHostToDevice, up_)); }
  void copy_down(void* to) { EXPECT_CUDA(cudaMemcpyAsync(to, device_, kBytes, cudaMemcpyDeviceToHost, down_)); }

  void* device_ = nullptr;
  void* pinned_ = nullptr;
  std::vector<char> pageable_ = std::vector<char>(kBytes);
  cudaStream_t up_ = nullptr;
  cudaStream_t down_ = nullptr;
};

class SimulatorCopiesOverTheBus : public SimulatorCopies {
 protected:
  void SetUp() override {
    if (!copies_take_the_bus()) GTEST_SKIP() << "`copies` of CACHALOT_SIM is not published";
  }
};

class SimulatorFixedCopies : public SimulatorCopies {
 protected:
  void SetUp() override {
    if (copies_take_the_bus()) GTEST_SKIP() << "`copies` of CACHALOT_SIM is published";
  }
};

TEST_F(SimulatorFixedCopies, EveryCopyTakesTheTimeOfALaunchAndTheHostGoesOn) {
  const std::int64_t call = time_of([&] { copy_up(pageable_.data()); });
  EXPECT_EQ(call, 0);
  const std::int64_t all = time_of([&] { cudaStreamSynchronize(up_); });
  EXPECT_LE(all, 10 * kMicrosecond);
}

TEST_F(SimulatorFixedCopies, PinningTakesNoTime) {
  void* memory = nullptr;
  EXPECT_EQ(time_of([&] {
              ASSERT_CUDA(cudaHostAlloc(&memory, kBytes, cudaHostAllocDefault));
              ASSERT_CUDA(cudaFreeHost(memory));
              ASSERT_CUDA(cudaHostRegister(pageable_.data(), kBytes, cudaHostRegisterDefault));
              ASSERT_CUDA(cudaHostUnregister(pageable_.data()));
            }),
            0);
}

TEST_F(SimulatorCopies, CallsThatPinAreCounted) {
  const std::int64_t pins = cachalot_sim_calls(0, "host_malloc");
  const std::int64_t unpins = cachalot_sim_calls(0, "host_free");
  void* memory = nullptr;
  ASSERT_CUDA(cudaMallocHost(&memory, 1));
  EXPECT_CUDA(cudaFreeHost(memory));
  EXPECT_EQ(cudaFreeHost(memory), cudaErrorInvalidValue);
  EXPECT_EQ(cudaGetLastError(), cudaErrorInvalidValue);
  EXPECT_EQ(cachalot_sim_calls(0, "host_malloc"), pins + 1);
  EXPECT_EQ(cachalot_sim_calls(0, "host_free"), unpins + 1);
}

TEST_F(SimulatorCopiesOverTheBus, FromPinnedMemoryTheHostGoesOnAtOnce) {
  EXPECT_LT(time_of([&] { copy_up(pinned_); }), kCallsNs);
  const std::int64_t wait = time_of([&] { cudaStreamSynchronize(up_); });
  EXPECT_GT(wait, kPinnedNs - kCallsNs);
  EXPECT_LT(wait, kPinnedNs + kCallsNs);
}

TEST_F(SimulatorCopiesOverTheBus, PageableMemoryMakesTheHostWaitInBothDirections) {
  EXPECT_GT(time_of([&] { copy_up(pageable_.data()); }), kPageableNs - kCallsNs);
  EXPECT_GT(time_of([&] { copy_down(pageable_.data()); }), kPageableNs - kCallsNs);
}

TEST_F(SimulatorCopiesOverTheBus, MemoryThatIsPinnedInPartIsPageable) {
  ASSERT_CUDA(cudaHostRegister(pageable_.data(), kBytes / 2, cudaHostRegisterDefault));
  EXPECT_GT(time_of([&] { copy_up(pageable_.data()); }), kPageableNs - kCallsNs);
  ASSERT_CUDA(cudaHostUnregister(pageable_.data()));
}

TEST_F(SimulatorCopiesOverTheBus, RegisteredMemoryIsPinned) {
  ASSERT_CUDA(cudaHostRegister(pageable_.data(), kBytes, cudaHostRegisterDefault));
  EXPECT_LT(time_of([&] { copy_up(pageable_.data()); }), kCallsNs);
  ASSERT_CUDA(cudaHostUnregister(pageable_.data()));
}

TEST_F(SimulatorCopiesOverTheBus, CopiesOfTwoDirectionsAndWorkOverlap) {
  cudaStream_t work = nullptr;
  ASSERT_CUDA(cudaStreamCreateWithFlags(&work, cudaStreamNonBlocking));
  const std::int64_t all = time_of([&] {
    copy_up(pinned_);
    copy_down(pinned_);
    ASSERT_EQ(cachalot_sim_launch(work, kPinnedNs), 0);
    ASSERT_CUDA(cudaDeviceSynchronize());
  });
  EXPECT_GT(all, kPinnedNs - kCallsNs);
  EXPECT_LT(all, kPinnedNs + kCallsNs);
  ASSERT_CUDA(cudaStreamDestroy(work));
}

TEST_F(SimulatorCopiesOverTheBus, CopiesOfOneDirectionTakeTurns) {
  const std::int64_t all = time_of([&] {
    copy_up(pinned_);
    ASSERT_CUDA(cudaMemcpyAsync(device_, pinned_, kBytes, cudaMemcpyHostToDevice, down_));
    ASSERT_CUDA(cudaDeviceSynchronize());
  });
  EXPECT_GT(all, 2 * kPinnedNs - kCallsNs);
}

TEST_F(SimulatorCopiesOverTheBus, ABlockingCopyWaitsForPinnedMemoryToo) {
  EXPECT_GT(time_of([&] { ASSERT_CUDA(cudaMemcpy(device_, pinned_, kBytes, cudaMemcpyHostToDevice)); }),
            kPinnedNs - kCallsNs);
}

TEST_F(SimulatorCopiesOverTheBus, CopiesWithinTheDeviceTakeTheTimeOfALaunch) {
  EXPECT_LT(time_of([&] {
              ASSERT_CUDA(cudaMemcpyAsync(device_, device_, kBytes, cudaMemcpyDeviceToDevice, up_));
              ASSERT_CUDA(cudaStreamSynchronize(up_));
            }),
            kCallsNs);
}

TEST_F(SimulatorCopiesOverTheBus, PinningAndUnpinningCostByTheMiB) {
  if (!calls_take_time()) GTEST_SKIP() << "`latency` of CACHALOT_SIM is none";
  void* memory = nullptr;
  const auto pin = time_of([&] { ASSERT_CUDA(cudaHostAlloc(&memory, kBytes, cudaHostAllocDefault)); });
  const auto unpin = time_of([&] { ASSERT_CUDA(cudaFreeHost(memory)); });
  EXPECT_EQ(pin, (100 + 4 * 250) * kMicrosecond);  // LatencyModel::published
  EXPECT_EQ(unpin, (100 + 4 * 60) * kMicrosecond);
  EXPECT_EQ(time_of([&] { ASSERT_CUDA(cudaHostRegister(pageable_.data(), kBytes, cudaHostRegisterDefault)); }), pin);
  EXPECT_EQ(time_of([&] { ASSERT_CUDA(cudaHostUnregister(pageable_.data())); }), unpin);
}

TEST_F(SimulatorCopiesOverTheBus, WhatACaptureRecordsTakesTheTimeOfALaunch) {
  ASSERT_CUDA(cudaStreamBeginCapture(up_, cudaStreamCaptureModeRelaxed));
  EXPECT_EQ(time_of([&] { copy_up(pageable_.data()); }), 0);
  cudaGraph_t graph = nullptr;
  ASSERT_CUDA(cudaStreamEndCapture(up_, &graph));
  ASSERT_CUDA(cudaGraphDestroy(graph));
}

}  // namespace
}  // namespace cachalot
