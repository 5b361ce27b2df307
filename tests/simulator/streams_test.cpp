#include <atomic>
#include <chrono>
#include <thread>

#include "cachalot/simulator.h"
#include "cuda_check.h"

namespace cachalot {
namespace {

constexpr std::int64_t kMillisecond = 1'000'000;

class SimulatorStreams : public SimulatorTest {
 protected:
  SimulatorStreams() {
    cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking);
    cudaEventCreate(&event_);
  }
  ~SimulatorStreams() override {
    cudaEventDestroy(event_);
    cudaStreamDestroy(stream_);
  }
  cudaStream_t stream_ = nullptr;
  cudaEvent_t event_ = nullptr;
};

TEST_F(SimulatorStreams, AnEventIsReadyWhenTimeHasPassedItsWork) {
  ASSERT_EQ(cachalot_sim_launch(stream_, kMillisecond), 0);
  ASSERT_CUDA(cudaEventRecord(event_, stream_));
  EXPECT_EQ(cudaEventQuery(event_), cudaErrorNotReady);
  EXPECT_EQ(cudaStreamQuery(stream_), cudaErrorNotReady);
  EXPECT_EQ(cudaGetLastError(), cudaErrorNotReady);
  ASSERT_EQ(cachalot_sim_advance(kMillisecond), 0);
  EXPECT_CUDA(cudaEventQuery(event_));
  EXPECT_CUDA(cudaStreamQuery(stream_));
}

TEST_F(SimulatorStreams, SynchronizingMovesTheClockToTheEndOfTheWork) {
  const std::int64_t before = cachalot_sim_clock_ns();
  ASSERT_EQ(cachalot_sim_launch(stream_, 5 * kMillisecond), 0);
  ASSERT_CUDA(cudaStreamSynchronize(stream_));
  EXPECT_GE(cachalot_sim_clock_ns() - before, 5 * kMillisecond);
  EXPECT_LT(cachalot_sim_clock_ns() - before, 6 * kMillisecond);
}

TEST_F(SimulatorStreams, APollingLoopComesToAnEnd) {
  ASSERT_EQ(cachalot_sim_launch(stream_, kMillisecond), 0);
  ASSERT_CUDA(cudaEventRecord(event_, stream_));
  while (cudaEventQuery(event_) == cudaErrorNotReady) cudaGetLastError();
  ASSERT_EQ(cachalot_sim_launch(stream_, kMillisecond), 0);
  while (cudaStreamQuery(stream_) == cudaErrorNotReady) cudaGetLastError();
}

TEST_F(SimulatorStreams, AWaitOrdersStreamsAlsoOfTwoDevices) {
  ASSERT_CUDA(cudaSetDevice(1));
  cudaStream_t other = nullptr;
  ASSERT_CUDA(cudaStreamCreate(&other));
  ASSERT_EQ(cachalot_sim_launch(stream_, kMillisecond), 0);
  ASSERT_CUDA(cudaEventRecord(event_, stream_));
  EXPECT_CUDA(cudaStreamQuery(other));
  ASSERT_CUDA(cudaStreamWaitEvent(other, event_, 0));
  EXPECT_EQ(cudaStreamQuery(other), cudaErrorNotReady);
  cudaGetLastError();
  EXPECT_EQ(cudaEventRecord(event_, other), cudaErrorInvalidResourceHandle) << "event and stream of two devices";
  cudaGetLastError();
  ASSERT_CUDA(cudaStreamSynchronize(other));
  EXPECT_CUDA(cudaEventQuery(event_));
  ASSERT_CUDA(cudaStreamDestroy(other));
}

TEST_F(SimulatorStreams, EventsMeasureTheWorkBetweenThem) {
  cudaEvent_t start = nullptr;
  ASSERT_CUDA(cudaEventCreate(&start));
  float ms = 0;
  EXPECT_EQ(cudaEventElapsedTime(&ms, start, event_), cudaErrorInvalidResourceHandle) << "never recorded";
  cudaGetLastError();
  ASSERT_CUDA(cudaEventRecord(start, stream_));
  ASSERT_EQ(cachalot_sim_launch(stream_, 7 * kMillisecond), 0);
  ASSERT_CUDA(cudaEventRecord(event_, stream_));
  EXPECT_EQ(cudaEventElapsedTime(&ms, start, event_), cudaErrorNotReady);
  cudaGetLastError();
  ASSERT_CUDA(cudaEventSynchronize(event_));
  ASSERT_CUDA(cudaEventElapsedTime(&ms, start, event_));
  EXPECT_NEAR(ms, 7, 0.01);
  ASSERT_CUDA(cudaEventDestroy(start));
}

TEST_F(SimulatorStreams, AHostFunctionHoldsUpItsStream) {
  std::atomic<bool> may_return{false};
  ASSERT_CUDA(cudaLaunchHostFunc(
      stream_,
      [](void* flag) {
        while (!*static_cast<std::atomic<bool>*>(flag)) std::this_thread::yield();
      },
      &may_return));
  ASSERT_CUDA(cudaEventRecord(event_, stream_));
  ASSERT_EQ(cachalot_sim_advance(1000 * kMillisecond), 0);
  EXPECT_EQ(cudaEventQuery(event_), cudaErrorNotReady);
  cudaGetLastError();
  may_return = true;
  ASSERT_CUDA(cudaStreamSynchronize(stream_));
  EXPECT_CUDA(cudaEventQuery(event_));
}

TEST_F(SimulatorStreams, AStreamWritesAValueWhenItGetsThere) {
  std::uint64_t* word = nullptr;
  ASSERT_CUDA(cudaHostAlloc(reinterpret_cast<void**>(&word), sizeof(*word), cudaHostAllocDefault));
  *word = 1;
  ASSERT_EQ(cachalot_sim_launch(stream_, kMillisecond), 0);
  ASSERT_EQ(DRIVER(cuStreamWriteValue64)(stream_, reinterpret_cast<CUdeviceptr>(word), 2, 0), CUDA_SUCCESS);
  EXPECT_EQ(*word, 1);
  ASSERT_CUDA(cudaStreamSynchronize(stream_));
  EXPECT_EQ(*word, 2);
  ASSERT_CUDA(cudaFreeHost(word));
}

TEST_F(SimulatorStreams, WhatWasDestroyedIsRefused) {
  cudaStream_t stream = nullptr;
  ASSERT_CUDA(cudaStreamCreate(&stream));
  ASSERT_CUDA(cudaStreamDestroy(stream));
  EXPECT_EQ(cudaStreamSynchronize(stream), cudaErrorInvalidResourceHandle);
  EXPECT_EQ(cudaEventQuery(reinterpret_cast<cudaEvent_t>(&stream)), cudaErrorInvalidResourceHandle);
  EXPECT_EQ(cudaGetLastError(), cudaErrorInvalidResourceHandle);
}

TEST_F(SimulatorStreams, ALaunchMustFitTheDevice) {
  static const char kernel = 0;
  EXPECT_CUDA(cudaLaunchKernel(&kernel, dim3(1), dim3(1024), nullptr, 0, stream_));
  EXPECT_EQ(cudaLaunchKernel(&kernel, dim3(1), dim3(1025), nullptr, 0, stream_), cudaErrorInvalidConfiguration);
  EXPECT_EQ(cudaLaunchKernel(&kernel, dim3(0), dim3(1), nullptr, 0, stream_), cudaErrorInvalidConfiguration);
  EXPECT_EQ(cudaLaunchKernel(&kernel, dim3(1), dim3(1), nullptr, 1 << 20, stream_), cudaErrorInvalidValue);
  cudaGetLastError();
}

TEST_F(SimulatorStreams, ManyThreadsCallAtOnce) {
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([i] {
      EXPECT_CUDA(cudaSetDevice(i % 2));
      cudaStream_t stream = nullptr;
      EXPECT_CUDA(cudaStreamCreate(&stream));
      for (int round = 0; round < 1000; ++round) {
        void* pointer = nullptr;
        EXPECT_CUDA(cudaMalloc(&pointer, kMib));
        EXPECT_CUDA(cudaMemsetAsync(pointer, round, 100, stream));
        EXPECT_CUDA(cudaFree(pointer));
      }
      EXPECT_CUDA(cudaStreamDestroy(stream));
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace cachalot
