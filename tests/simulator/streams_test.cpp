#include <atomic>
#include <chrono>
#include <thread>

#include "cachalot/simulator.h"
#include "cuda_check.h"

namespace cachalot {
namespace {

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

TEST_F(SimulatorStreams, TheHostWaitsWhenTheQueueIsFull) {
  static const char kernel = 0;
  const auto launch = [&] { return cudaLaunchKernel(&kernel, dim3(1), dim3(1), nullptr, 0, stream_); };
  constexpr std::int64_t kLaunchNs = 10'000;
  const std::int64_t before = cachalot_sim_clock_ns();
  for (int i = 0; i < 1024; ++i) ASSERT_CUDA(launch());
  EXPECT_EQ(cachalot_sim_clock_ns(), before) << "the queue holds so many";
  for (int i = 0; i < 1000; ++i) ASSERT_CUDA(launch());
  EXPECT_EQ(cachalot_sim_clock_ns(), before + 1000 * kLaunchNs);
  ASSERT_CUDA(cudaStreamSynchronize(stream_));
}

TEST_F(SimulatorStreams, AStreamAtTheAddressOfADestroyedOneIsFresh) {
  for (int i = 0; i < 10; ++i) {  // the handle is most likely the same each time
    cudaStream_t stream = nullptr;
    ASSERT_CUDA(cudaStreamCreate(&stream));
    EXPECT_CUDA(cudaStreamQuery(stream));
    ASSERT_EQ(cachalot_sim_launch(stream, kMillisecond), 0);
    ASSERT_CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    ASSERT_CUDA(cudaStreamDestroy(stream));
    void* pointer = nullptr;
    ASSERT_CUDA(cudaMalloc(&pointer, kMib)) << "its capture has ended";
    ASSERT_CUDA(cudaFree(pointer));
  }
}

TEST_F(SimulatorStreams, ADestroyedStreamSpoilsTheCaptureItHadJoined) {
  cudaStream_t side = nullptr;
  ASSERT_CUDA(cudaStreamCreate(&side));
  ASSERT_CUDA(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeGlobal));
  ASSERT_CUDA(cudaEventRecord(event_, stream_));
  ASSERT_CUDA(cudaStreamWaitEvent(side, event_, 0));
  ASSERT_CUDA(cudaStreamDestroy(side));
  cudaGraph_t graph = nullptr;
  EXPECT_EQ(cudaStreamEndCapture(stream_, &graph), cudaErrorStreamCaptureInvalidated);
  cudaGetLastError();
}

TEST_F(SimulatorStreams, AWriteToMemoryThatIsFreedIsDropped) {
  constexpr CUdeviceptr kNowhere = 64;
  EXPECT_EQ(DRIVER(cuStreamWriteValue32)(stream_, kNowhere, 1, 0), CUDA_ERROR_INVALID_VALUE);
  void* device = nullptr;
  ASSERT_CUDA(cudaMalloc(&device, kMib));
  void* host = nullptr;
  ASSERT_CUDA(cudaHostAlloc(&host, 64, cudaHostAllocDefault));
  ASSERT_EQ(cachalot_sim_launch(stream_, kMillisecond), 0);
  for (void* target : {device, host})
    ASSERT_EQ(DRIVER(cuStreamWriteValue32)(stream_, reinterpret_cast<CUdeviceptr>(target), 1, 0), CUDA_SUCCESS);
  ASSERT_CUDA(cudaFreeHost(host));
  ASSERT_CUDA(cudaFree(device));
  ASSERT_CUDA(cudaStreamSynchronize(stream_));
}

TEST_F(SimulatorStreams, AHostFunctionMayNotCall) {
  cudaError_t error = cudaSuccess;
  ASSERT_CUDA(cudaLaunchHostFunc(
      stream_, [](void* told) { *static_cast<cudaError_t*>(told) = cudaDeviceSynchronize(); }, &error));
  ASSERT_CUDA(cudaStreamSynchronize(stream_));
  EXPECT_EQ(error, cudaErrorNotPermitted);
}

TEST_F(SimulatorStreams, SynchronizingAStreamWaitsForNoOther) {
  std::atomic<bool> may_return{false};
  void* pointer = nullptr;
  ASSERT_CUDA(cudaMallocAsync(&pointer, kMib, stream_));
  ASSERT_CUDA(cudaFreeAsync(pointer, stream_));
  cudaStream_t other = nullptr;
  ASSERT_CUDA(cudaStreamCreate(&other));
  ASSERT_EQ(cachalot_sim_launch(other, 1000 * kMillisecond), 0);
  ASSERT_CUDA(cudaLaunchHostFunc(
      other,
      [](void* flag) {
        while (!*static_cast<std::atomic<bool>*>(flag)) std::this_thread::yield();
      },
      &may_return));
  ASSERT_CUDA(cudaStreamSynchronize(stream_));  // and gives back what the pool kept
  may_return = true;
  ASSERT_CUDA(cudaStreamSynchronize(other));
  ASSERT_CUDA(cudaStreamDestroy(other));
}

TEST_F(SimulatorStreams, TheDriversFailuresAreNotTheRuntimesLastError) {
  EXPECT_EQ(DRIVER(cuEventSynchronize)(reinterpret_cast<CUevent>(&event_)), CUDA_ERROR_INVALID_HANDLE);
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
}

TEST_F(SimulatorStreams, AnUnknownKindOfCallHasNoCount) {
  EXPECT_GE(cachalot_sim_calls(0, "malloc"), 0);
  EXPECT_EQ(cachalot_sim_calls(0, "nonsense"), -1);
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
