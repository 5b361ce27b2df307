// CUDA's rules in a context beside the device's primary one.
#include <cudaTypedefs.h>

#include <thread>

#include "cachalot/simulator.h"
#include "cuda_check.h"

namespace cachalot {
namespace {

// A function of the driver in the form that CUDA 4.0 has, which takes no parameters of later versions.
template <typename Function>
Function old_form(const char* name) {
  void* found = nullptr;
  cudaDriverEntryPointQueryResult result{};
  EXPECT_CUDA(cudaGetDriverEntryPointByVersion(name, &found, 4000, cudaEnableDefault, &result));
  return reinterpret_cast<Function>(found);
}

unsigned long long number_of(cudaStream_t stream) {
  unsigned long long id = 0;
  EXPECT_EQ(DRIVER(cuStreamGetId)(stream, &id), CUDA_SUCCESS);
  return id;
}

// The context is current in the thread of the test.
class SimulatorContexts : public SimulatorTest {
 protected:
  SimulatorContexts() {
    EXPECT_CUDA(cudaEventCreate(&event_of_primary_));
    context_ = create();
    EXPECT_CUDA(cudaStreamCreate(&blocking_));
    EXPECT_CUDA(cudaEventCreate(&event_));
  }
  ~SimulatorContexts() override {
    cudaGetLastError();
    if (context_) destroy(context_);
    EXPECT_CUDA(cudaSetDevice(0));
    EXPECT_CUDA(cudaEventDestroy(event_of_primary_));
  }
  static CUcontext create() {
    CUcontext context = nullptr;
    EXPECT_EQ(old_form<PFN_cuCtxCreate_v3020>("cuCtxCreate")(&context, 0, 0), CUDA_SUCCESS);
    return context;
  }
  static void destroy(CUcontext context) { EXPECT_EQ(DRIVER(cuCtxDestroy)(context), CUDA_SUCCESS); }

  CUcontext context_ = nullptr;
  cudaStream_t blocking_ = nullptr;
  cudaEvent_t event_ = nullptr;
  cudaEvent_t event_of_primary_ = nullptr;
};

TEST_F(SimulatorContexts, BlockingStreamsWaitForTheLegacyStreamOfTheirContextAlone) {
  ASSERT_EQ(cachalot_sim_launch(blocking_, kMillisecond), 0);
  ASSERT_CUDA(cudaEventRecord(event_, cudaStreamLegacy));
  EXPECT_EQ(cudaEventQuery(event_), cudaErrorNotReady) << "an event there is behind the blocking streams";
  EXPECT_EQ(cudaStreamQuery(nullptr), cudaErrorNotReady);
  ASSERT_CUDA(cudaSetDevice(0));
  EXPECT_CUDA(cudaStreamQuery(nullptr)) << "that of the primary context is not";
  ASSERT_EQ(cachalot_sim_launch(nullptr, 5 * kMillisecond), 0);
  ASSERT_EQ(DRIVER(cuCtxSetCurrent)(context_), CUDA_SUCCESS);
  ASSERT_CUDA(cudaStreamSynchronize(nullptr));
  EXPECT_CUDA(cudaStreamQuery(blocking_)) << "a blocking stream is behind no other context";
  ASSERT_EQ(cachalot_sim_launch(nullptr, kMillisecond), 0);
  for (const cudaStream_t behind : {blocking_, cudaStreamPerThread}) {
    ASSERT_CUDA(cudaEventRecord(event_, behind));
    EXPECT_EQ(cudaEventQuery(event_), cudaErrorNotReady);
  }
}

TEST_F(SimulatorContexts, TheLegacyStreamIsBehindABlockingStreamThatWasDestroyed) {
  ASSERT_EQ(cachalot_sim_launch(blocking_, kMillisecond), 0);
  ASSERT_CUDA(cudaStreamDestroy(blocking_));
  ASSERT_CUDA(cudaEventRecord(event_, nullptr));
  EXPECT_EQ(cudaEventQuery(event_), cudaErrorNotReady);
}

TEST_F(SimulatorContexts, TheLegacyStreamCannotBeUsedWhileABlockingStreamCaptures) {
  cudaGraph_t graph = nullptr;
  ASSERT_CUDA(cudaStreamBeginCapture(blocking_, cudaStreamCaptureModeRelaxed));
  cudaStreamCaptureStatus capturing{};
  EXPECT_EQ(cudaStreamIsCapturing(nullptr, &capturing), cudaErrorStreamCaptureImplicit);
  EXPECT_CUDA(cudaStreamIsCapturing(blocking_, &capturing));
  EXPECT_EQ(capturing, cudaStreamCaptureStatusActive) << "asking that spoils nothing";
  ASSERT_CUDA(cudaSetDevice(0));
  EXPECT_CUDA(cudaEventRecord(event_of_primary_, nullptr)) << "another context's legacy stream waits for other streams";
  ASSERT_EQ(DRIVER(cuCtxSetCurrent)(context_), CUDA_SUCCESS);
  EXPECT_EQ(cudaEventRecord(event_, nullptr), cudaErrorStreamCaptureImplicit);
  EXPECT_EQ(cudaStreamEndCapture(blocking_, &graph), cudaErrorStreamCaptureInvalidated);
  EXPECT_EQ(cudaStreamBeginCapture(nullptr, cudaStreamCaptureModeRelaxed), cudaErrorStreamCaptureUnsupported);
}

TEST_F(SimulatorContexts, EachHasALegacyAndAPerThreadStreamOfItsOwn) {
  const unsigned long long legacy = number_of(cudaStreamLegacy);
  const unsigned long long per_thread = number_of(cudaStreamPerThread);
  EXPECT_EQ(number_of(nullptr), legacy);
  EXPECT_NE(per_thread, legacy);
  std::thread([&] {
    EXPECT_EQ(DRIVER(cuCtxSetCurrent)(context_), CUDA_SUCCESS);
    EXPECT_EQ(number_of(nullptr), legacy);
    EXPECT_NE(number_of(cudaStreamPerThread), per_thread);
  }).join();
  ASSERT_CUDA(cudaSetDevice(0));
  EXPECT_NE(number_of(cudaStreamLegacy), legacy);
  EXPECT_NE(number_of(cudaStreamPerThread), per_thread);
}

TEST_F(SimulatorContexts, AnEventIsRecordedOnAStreamOfItsContextAlone) {
  EXPECT_EQ(cudaEventRecord(event_of_primary_, blocking_), cudaErrorInvalidResourceHandle);
  EXPECT_EQ(cudaEventRecord(event_of_primary_, cudaStreamPerThread), cudaErrorInvalidResourceHandle);
  EXPECT_CUDA(cudaEventRecord(event_, blocking_));
  ASSERT_CUDA(cudaSetDevice(0));
  EXPECT_EQ(cudaEventRecord(event_, nullptr), cudaErrorInvalidResourceHandle);
  EXPECT_CUDA(cudaStreamWaitEvent(nullptr, event_, 0)) << "others may wait for it";
}

TEST_F(SimulatorContexts, ItsStreamsAndEventsEndWithIt) {
  const unsigned long long per_thread = number_of(cudaStreamPerThread);
  destroy(context_);
  context_ = nullptr;
  EXPECT_EQ(cudaStreamQuery(blocking_), cudaErrorInvalidResourceHandle);
  EXPECT_EQ(cudaEventQuery(event_), cudaErrorInvalidResourceHandle);
  EXPECT_EQ(DRIVER(cuCtxDestroy)(nullptr), CUDA_ERROR_INVALID_CONTEXT);
  context_ = create();
  EXPECT_NE(number_of(cudaStreamPerThread), per_thread);
}

TEST_F(SimulatorContexts, ServesCallsThatNeedAContext) {
  const std::int64_t primary = cachalot_sim_contexts(0);
  std::thread([&] {
    CUevent event = nullptr;
    EXPECT_EQ(DRIVER(cuEventCreate)(&event, 0), CUDA_ERROR_INVALID_CONTEXT);
    EXPECT_EQ(DRIVER(cuCtxSetCurrent)(context_), CUDA_SUCCESS);
    EXPECT_EQ(DRIVER(cuEventCreate)(&event, 0), CUDA_SUCCESS);
    EXPECT_EQ(DRIVER(cuEventDestroy)(event), CUDA_SUCCESS);
  }).join();
  EXPECT_EQ(cachalot_sim_contexts(0), primary) << "it is not counted with the primary ones";
}

TEST_F(SimulatorContexts, ABadGreenContextIsRefused) {
  EXPECT_EQ(DRIVER(cuGreenCtxDestroy)(nullptr), CUDA_ERROR_INVALID_HANDLE);
  ASSERT_CUDA(cudaSetDevice(0));
  EXPECT_CUDA(cudaEventRecord(event_of_primary_, nullptr)) << "the primary context keeps its events";
}

}  // namespace
}  // namespace cachalot
