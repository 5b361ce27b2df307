#include <dlfcn.h>

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

unsigned long long id_of(cudaStream_t stream) {
  unsigned long long id = 0;
  EXPECT_CUDA(cudaStreamGetId(stream, &id));
  return id;
}

TEST_F(SimulatorStreams, AHandleIsGivenAgainAtOnceToAStreamOfAnotherId) {
  cudaStream_t others[2] = {};
  for (cudaStream_t& other : others) ASSERT_CUDA(cudaStreamCreate(&other));
  const unsigned long long id = id_of(others[0]);
  for (cudaStream_t other : others) ASSERT_CUDA(cudaStreamDestroy(other));
  cudaStream_t again[2] = {};
  for (cudaStream_t& stream : again) ASSERT_CUDA(cudaStreamCreate(&stream));
  EXPECT_EQ(again[0], others[1]) << "the last destroyed is the first that is given";
  EXPECT_EQ(again[1], others[0]);
  EXPECT_NE(id_of(again[1]), id);
  for (cudaStream_t stream : again) ASSERT_CUDA(cudaStreamDestroy(stream));
}

TEST_F(SimulatorStreams, ANumberIsForgottenWithItsStreamWhoeverEndsIt) {
  const auto ends = [](const auto& end) {
    cudaStream_t stream = nullptr;
    ASSERT_CUDA(cudaStreamCreate(&stream));
    EXPECT_EQ(id_of(stream), id_of(stream));
    end(stream);
    unsigned long long id = 0;
    EXPECT_EQ(cudaStreamGetId(stream, &id), cudaErrorInvalidResourceHandle);
    EXPECT_EQ(cudaGetLastError(), cudaErrorInvalidResourceHandle);
  };
  ends([](cudaStream_t stream) { ASSERT_CUDA(cudaStreamDestroy(stream)); });
  ends([](cudaStream_t stream) { std::thread([&] { ASSERT_CUDA(cudaStreamDestroy(stream)); }).join(); });
  ASSERT_CUDA(cudaSetDevice(1));
  ends([](cudaStream_t) { ASSERT_CUDA(cudaDeviceReset()); });
  ASSERT_CUDA(cudaSetDevice(0));
}

TEST_F(SimulatorStreams, EachThreadsOwnStreamHasItsNumberThere) {
  const unsigned long long here = id_of(cudaStreamPerThread);
  unsigned long long there = here;
  std::thread([&] { there = id_of(cudaStreamPerThread); }).join();
  EXPECT_NE(there, here);
  EXPECT_EQ(id_of(cudaStreamPerThread), here);
  EXPECT_NE(id_of(nullptr), here);
}

TEST_F(SimulatorStreams, AStreamOfAnOldHandleIsNotBehindTheOldWork) {
  cudaStream_t old = nullptr;
  ASSERT_CUDA(cudaStreamCreate(&old));
  ASSERT_EQ(cachalot_sim_launch(old, 1000 * kMillisecond), 0);
  ASSERT_CUDA(cudaStreamDestroy(old));
  cudaStream_t fresh = nullptr;
  ASSERT_CUDA(cudaStreamCreate(&fresh));
  ASSERT_EQ(fresh, old);
  EXPECT_CUDA(cudaStreamQuery(fresh));
  ASSERT_CUDA(cudaStreamDestroy(fresh));
}

TEST_F(SimulatorStreams, EveryCallWithADeadStreamOrEventFails) {
  static const char kernel = 0;
  cudaEvent_t alive = event_;
  cudaStream_t dead = nullptr;
  ASSERT_CUDA(cudaStreamCreate(&dead));
  ASSERT_CUDA(cudaStreamDestroy(dead));
  cudaEvent_t gone = nullptr;
  ASSERT_CUDA(cudaEventCreate(&gone));
  ASSERT_CUDA(cudaEventDestroy(gone));
  unsigned long long id = 0;
  void* pointer = nullptr;
  cudaStreamCaptureStatus status{};
  for (const cudaError_t error :
       {cudaStreamQuery(dead), cudaStreamDestroy(dead), cudaStreamGetId(dead, &id), cudaEventRecord(alive, dead),
        cudaStreamWaitEvent(dead, alive, 0), cudaStreamWaitEvent(stream_, gone, 0), cudaEventRecord(gone, stream_),
        cudaEventDestroy(gone), cudaMallocAsync(&pointer, 1, dead), cudaMemsetAsync(&status, 0, 1, dead),
        cudaStreamIsCapturing(dead, &status), cudaStreamBeginCapture(dead, cudaStreamCaptureModeGlobal),
        cudaLaunchKernel(&kernel, dim3(1), dim3(1), nullptr, 0, dead)}) {
    EXPECT_EQ(error, cudaErrorInvalidResourceHandle);
  }
  EXPECT_EQ(DRIVER(cuStreamWriteValue32)(dead, 64, 1, 0), CUDA_ERROR_INVALID_HANDLE);
  cudaGetLastError();
}

TEST_F(SimulatorStreams, EachThreadHasAPerThreadStreamOfItsOwn) {
  const unsigned long long own = id_of(cudaStreamPerThread);
  EXPECT_EQ(id_of(cudaStreamPerThread), own);
  EXPECT_NE(own, id_of(nullptr));
  ASSERT_EQ(cachalot_sim_launch(cudaStreamPerThread, 1000 * kMillisecond), 0);
  unsigned long long ids[2] = {};
  for (unsigned long long& id : ids) {
    std::thread([&] {
      id = id_of(cudaStreamPerThread);
      EXPECT_CUDA(cudaStreamQuery(cudaStreamPerThread)) << "it is not behind another thread's work";
    }).join();
  }
  EXPECT_NE(ids[0], own);
  EXPECT_NE(ids[0], ids[1]);
  ASSERT_CUDA(cudaSetDevice(1));
  EXPECT_NE(id_of(cudaStreamPerThread), own) << "and one for each device";
  EXPECT_NE(id_of(cudaStreamLegacy), 1);
  ASSERT_CUDA(cudaSetDevice(0));
  EXPECT_EQ(cudaStreamQuery(cudaStreamPerThread), cudaErrorNotReady);
  cudaGetLastError();
  ASSERT_CUDA(cudaStreamSynchronize(cudaStreamPerThread));
}

TEST_F(SimulatorStreams, AProgramOfPerThreadDefaultStreamsHasOneInEachThread) {
  // The functions have the names of nvcc's --default-stream per-thread.
  const auto query = reinterpret_cast<decltype(&cudaStreamQuery)>(dlsym(RTLD_DEFAULT, "cudaStreamQuery_ptsz"));
  const auto id = reinterpret_cast<decltype(&cudaStreamGetId)>(dlsym(RTLD_DEFAULT, "cudaStreamGetId_ptsz"));
  const auto fill = reinterpret_cast<decltype(&cudaMemset)>(dlsym(RTLD_DEFAULT, "cudaMemset_ptds"));
  unsigned long long own = 0;
  ASSERT_CUDA(id(nullptr, &own));
  EXPECT_EQ(own, id_of(cudaStreamPerThread));
  unsigned long long legacy = 0;
  ASSERT_CUDA(id(cudaStreamLegacy, &legacy));
  EXPECT_EQ(legacy, id_of(nullptr));
  void* memory = nullptr;
  ASSERT_CUDA(cudaMalloc(&memory, kMib));
  ASSERT_CUDA(fill(memory, 1, kMib));
  EXPECT_EQ(query(nullptr), cudaErrorNotReady);
  EXPECT_EQ(cudaStreamQuery(cudaStreamPerThread), cudaErrorNotReady);
  std::thread([&] { EXPECT_CUDA(query(nullptr)); }).join();
  cudaGetLastError();
  ASSERT_CUDA(cudaFree(memory));
}

TEST_F(SimulatorStreams, BlockingStreamsAndTheLegacyStreamWaitForEachOther) {
  cudaStream_t blocking = nullptr;
  ASSERT_CUDA(cudaStreamCreate(&blocking));
  ASSERT_EQ(cachalot_sim_launch(blocking, kMillisecond), 0);
  ASSERT_CUDA(cudaEventRecord(event_, cudaStreamLegacy));
  EXPECT_EQ(cudaEventQuery(event_), cudaErrorNotReady) << "an event there is behind the blocking streams";
  EXPECT_EQ(cudaStreamQuery(nullptr), cudaErrorNotReady);
  cudaGetLastError();
  EXPECT_CUDA(cudaStreamQuery(stream_)) << "a non-blocking stream is not";
  ASSERT_CUDA(cudaStreamSynchronize(nullptr));
  EXPECT_CUDA(cudaStreamQuery(blocking));
  ASSERT_EQ(cachalot_sim_launch(nullptr, kMillisecond), 0);
  ASSERT_CUDA(cudaEventRecord(event_, blocking));
  EXPECT_EQ(cudaEventQuery(event_), cudaErrorNotReady);
  cudaGetLastError();
  ASSERT_CUDA(cudaEventRecord(event_, cudaStreamPerThread));
  EXPECT_EQ(cudaEventQuery(event_), cudaErrorNotReady) << "a per-thread stream is a blocking one";
  cudaGetLastError();
  ASSERT_CUDA(cudaEventSynchronize(event_));
  ASSERT_CUDA(cudaStreamDestroy(blocking));
}

TEST_F(SimulatorStreams, AHostFunctionOfABlockingStreamHoldsUpTheLegacyStream) {
  cudaStream_t blocking = nullptr;
  ASSERT_CUDA(cudaStreamCreate(&blocking));
  std::atomic<bool> may_return{false};
  ASSERT_CUDA(cudaLaunchHostFunc(
      blocking,
      [](void* flag) {
        while (!*static_cast<std::atomic<bool>*>(flag)) std::this_thread::yield();
      },
      &may_return));
  ASSERT_EQ(cachalot_sim_advance(1000 * kMillisecond), 0);
  EXPECT_CUDA(cudaStreamQuery(stream_));
  EXPECT_EQ(cudaStreamQuery(nullptr), cudaErrorNotReady);
  ASSERT_CUDA(cudaEventRecord(event_, nullptr));
  EXPECT_EQ(cudaEventQuery(event_), cudaErrorNotReady);
  cudaGetLastError();
  may_return = true;
  ASSERT_CUDA(cudaEventSynchronize(event_));
  ASSERT_CUDA(cudaStreamDestroy(blocking));
}

TEST_F(SimulatorStreams, AHostFunctionOfTheLegacyStreamHoldsUpABlockingStream) {
  cudaStream_t blocking = nullptr;
  ASSERT_CUDA(cudaStreamCreate(&blocking));
  std::atomic<bool> may_return{false};
  ASSERT_CUDA(cudaLaunchHostFunc(
      cudaStreamLegacy,
      [](void* flag) {
        while (!*static_cast<std::atomic<bool>*>(flag)) std::this_thread::yield();
      },
      &may_return));
  ASSERT_EQ(cachalot_sim_launch(blocking, kMillisecond), 0);
  ASSERT_EQ(cachalot_sim_advance(1000 * kMillisecond), 0);
  EXPECT_CUDA(cudaStreamQuery(stream_));
  EXPECT_EQ(cudaStreamQuery(blocking), cudaErrorNotReady);
  cudaGetLastError();
  may_return = true;
  ASSERT_CUDA(cudaStreamSynchronize(blocking));
  ASSERT_CUDA(cudaStreamDestroy(blocking));
}

TEST_F(SimulatorStreams, AKernelMustBeLaunchedOnAStreamOfTheCurrentDevice) {
  static const char kernel = 0;
  ASSERT_CUDA(cudaSetDevice(1));
  EXPECT_EQ(cudaLaunchKernel(&kernel, dim3(1), dim3(1), nullptr, 0, stream_), cudaErrorInvalidResourceHandle);
  cudaGetLastError();
  int value = 0;
  void* pointer = nullptr;
  ASSERT_CUDA(cudaMalloc(&pointer, 4));
  EXPECT_CUDA(cudaMemcpyAsync(pointer, &value, 4, cudaMemcpyDefault, stream_)) << "a copy need not be";
  ASSERT_CUDA(cudaFree(pointer));
  ASSERT_CUDA(cudaSetDevice(0));
  EXPECT_CUDA(cudaLaunchKernel(&kernel, dim3(1), dim3(1), nullptr, 0, stream_));
}

TEST_F(SimulatorStreams, EventsOfTwoDevicesHaveNoTimeBetweenThem) {
  ASSERT_CUDA(cudaEventRecord(event_, stream_));
  ASSERT_CUDA(cudaSetDevice(1));
  cudaEvent_t other = nullptr;
  ASSERT_CUDA(cudaEventCreate(&other));
  ASSERT_CUDA(cudaEventRecord(other, nullptr));
  ASSERT_CUDA(cudaDeviceSynchronize());
  float ms = 0;
  EXPECT_EQ(cudaEventElapsedTime(&ms, event_, other), cudaErrorInvalidResourceHandle);
  cudaGetLastError();
  ASSERT_CUDA(cudaEventDestroy(other));
}

// Returns the driver's answers to a thread that never touched CUDA, and then to one with the context.
template <typename Call>
std::pair<CUresult, CUresult> without_and_with_context(Call&& call) {
  std::pair<CUresult, CUresult> errors;
  std::thread([&] {
    errors.first = call();
    CUcontext context = nullptr;
    EXPECT_EQ(DRIVER(cuDevicePrimaryCtxRetain)(&context, 0), CUDA_SUCCESS);
    EXPECT_EQ(DRIVER(cuCtxSetCurrent)(context), CUDA_SUCCESS);
    errors.second = call();
  }).join();
  return errors;
}

TEST_F(SimulatorStreams, TheDriverNeedsACurrentContext) {
  const std::pair<CUresult, CUresult> refused{CUDA_ERROR_INVALID_CONTEXT, CUDA_SUCCESS};
  CUdeviceptr address = 0;
  EXPECT_EQ(without_and_with_context([&] { return DRIVER(cuMemAlloc)(&address, kMib); }), refused);
  EXPECT_EQ(without_and_with_context([&] { return DRIVER(cuMemsetD32)(address, 1, 4); }), refused);
  EXPECT_EQ(without_and_with_context([&] { return DRIVER(cuMemFree)(address); }), refused);
  CUdeviceptr range = 0;
  EXPECT_EQ(without_and_with_context([&] { return DRIVER(cuMemAddressReserve)(&range, 2 * kMib, 0, 0, 0); }),
            (std::pair{CUDA_SUCCESS, CUDA_SUCCESS}))
      << "the documents name no context";
  CUevent event = nullptr;
  EXPECT_EQ(without_and_with_context([&] { return DRIVER(cuEventCreate)(&event, 0); }), refused);
  EXPECT_EQ(without_and_with_context([&] { return DRIVER(cuEventRecord)(event, stream_); }), refused);
  EXPECT_EQ(without_and_with_context([&] { return DRIVER(cuEventQuery)(event); }).first, CUDA_SUCCESS);
  EXPECT_EQ(without_and_with_context([&] { return DRIVER(cuEventDestroy)(event); }), refused);
  EXPECT_EQ(without_and_with_context([&] { return DRIVER(cuStreamSynchronize)(stream_); }), refused);
}

TEST_F(SimulatorStreams, ACallOfTheRuntimeMakesTheContextCurrent) {
  std::thread([&] {
    CUcontext context = nullptr;
    EXPECT_EQ(DRIVER(cuCtxGetCurrent)(&context), CUDA_SUCCESS);
    EXPECT_EQ(context, nullptr);
    EXPECT_CUDA(cudaFree(nullptr));
    EXPECT_EQ(DRIVER(cuCtxGetCurrent)(&context), CUDA_SUCCESS);
    EXPECT_NE(context, nullptr);
    EXPECT_EQ(DRIVER(cuStreamSynchronize)(stream_), CUDA_SUCCESS);
  }).join();
}

TEST_F(SimulatorStreams, ChoosingADeviceMakesItsContextOnce) {
  const std::int64_t before = cachalot_sim_contexts(1);
  ASSERT_CUDA(cudaSetDevice(1));
  ASSERT_CUDA(cudaDeviceReset());
  EXPECT_EQ(cachalot_sim_contexts(1), before == 0 ? 1 : before);
  const std::int64_t reset = cachalot_sim_contexts(1);
  cudaDeviceProp properties{};
  ASSERT_CUDA(cudaGetDeviceProperties(&properties, 1));
  EXPECT_EQ(cachalot_sim_contexts(1), reset) << "asking for properties makes none";
  ASSERT_CUDA(cudaSetDevice(1));
  ASSERT_CUDA(cudaSetDevice(1));
  EXPECT_EQ(cachalot_sim_contexts(1), reset + 1);
  EXPECT_EQ(cachalot_sim_contexts(2), -1);
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

TEST_F(SimulatorStreams, AStreamAtTheAddressOfADestroyedOneIsInNoneOfItsCaptures) {
  cudaStream_t side = nullptr;
  ASSERT_CUDA(cudaStreamCreateWithFlags(&side, cudaStreamNonBlocking));
  ASSERT_CUDA(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeRelaxed));
  ASSERT_CUDA(cudaEventRecord(event_, stream_));
  ASSERT_CUDA(cudaStreamWaitEvent(side, event_, 0));
  const cudaStream_t destroyed = side;
  ASSERT_CUDA(cudaStreamDestroy(side));
  ASSERT_CUDA(cudaStreamCreateWithFlags(&side, cudaStreamNonBlocking));
  ASSERT_EQ(side, destroyed);
  ASSERT_CUDA(cudaStreamBeginCapture(side, cudaStreamCaptureModeRelaxed));
  cudaGraph_t graph = nullptr;
  EXPECT_EQ(cudaStreamEndCapture(stream_, &graph), cudaErrorStreamCaptureInvalidated);
  cudaGetLastError();
  ASSERT_EQ(cachalot_sim_launch(side, kMillisecond), 0);
  ASSERT_CUDA(cudaStreamEndCapture(side, &graph));
  std::size_t nodes = 0;
  ASSERT_CUDA(cudaGraphGetNodes(graph, nullptr, &nodes));
  EXPECT_EQ(nodes, 1u);
  ASSERT_CUDA(cudaGraphDestroy(graph));
  ASSERT_CUDA(cudaStreamDestroy(side));
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
  cudaError_t errors[] = {cudaSuccess, cudaSuccess};
  ASSERT_CUDA(cudaLaunchHostFunc(
      stream_,
      [](void* told) {
        int device = 0;
        static_cast<cudaError_t*>(told)[0] = cudaDeviceSynchronize();
        static_cast<cudaError_t*>(told)[1] = cudaGetDevice(&device);
      },
      errors));
  ASSERT_CUDA(cudaStreamSynchronize(stream_));
  for (const cudaError_t error : errors) EXPECT_EQ(error, cudaErrorNotPermitted);
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
