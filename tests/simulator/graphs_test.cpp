#include <thread>

#include "cachalot/simulator.h"
#include "cuda_check.h"

namespace cachalot {
namespace {

class SimulatorGraphs : public SimulatorTest {
 protected:
  SimulatorGraphs() {
    cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking);
    cudaStreamCreateWithFlags(&side_, cudaStreamNonBlocking);
    cudaEventCreateWithFlags(&event_, cudaEventDisableTiming);
  }
  ~SimulatorGraphs() override {
    cudaEventDestroy(event_);
    cudaStreamDestroy(side_);
    cudaStreamDestroy(stream_);
  }

  static cudaStreamCaptureStatus status(cudaStream_t stream) {
    cudaStreamCaptureStatus status{};
    EXPECT_CUDA(cudaStreamIsCapturing(stream, &status));
    return status;
  }

  cudaStream_t stream_ = nullptr;
  cudaStream_t side_ = nullptr;
  cudaEvent_t event_ = nullptr;
};

TEST_F(SimulatorGraphs, LaunchingAGraphCostsTheSumOfItsLaunches) {
  ASSERT_CUDA(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeGlobal));
  for (int i = 0; i < 3; ++i) ASSERT_EQ(cachalot_sim_launch(stream_, kMillisecond), 0);
  cudaGraph_t graph = nullptr;
  ASSERT_CUDA(cudaStreamEndCapture(stream_, &graph));
  const std::int64_t before = cachalot_sim_clock_ns();
  ASSERT_CUDA(cudaStreamSynchronize(stream_));
  EXPECT_LT(cachalot_sim_clock_ns() - before, kMillisecond) << "captured work must not run";

  std::size_t nodes = 0;
  ASSERT_CUDA(cudaGraphGetNodes(graph, nullptr, &nodes));
  EXPECT_EQ(nodes, 3);
  cudaGraphExec_t exec = nullptr;
  ASSERT_CUDA(cudaGraphInstantiateWithFlags(&exec, graph, 0));
  ASSERT_CUDA(cudaGraphDestroy(graph));
  ASSERT_CUDA(cudaGraphLaunch(exec, stream_));
  ASSERT_CUDA(cudaStreamSynchronize(stream_));
  EXPECT_GE(cachalot_sim_clock_ns() - before, 3 * kMillisecond);
  EXPECT_LT(cachalot_sim_clock_ns() - before, 4 * kMillisecond);
  ASSERT_CUDA(cudaGraphExecDestroy(exec));
}

TEST_F(SimulatorGraphs, AStreamThatWaitsForACapturedEventJoinsTheCapture) {
  ASSERT_CUDA(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeGlobal));
  ASSERT_EQ(cachalot_sim_launch(stream_, kMillisecond), 0);
  ASSERT_CUDA(cudaEventRecord(event_, stream_));
  EXPECT_EQ(status(side_), cudaStreamCaptureStatusNone);
  ASSERT_CUDA(cudaStreamWaitEvent(side_, event_, 0));
  EXPECT_EQ(status(side_), cudaStreamCaptureStatusActive);
  ASSERT_EQ(cachalot_sim_launch(side_, kMillisecond), 0);
  const cudaGraphNode_t* frontier = nullptr;
  cudaStreamCaptureStatus capturing{};
  unsigned long long id = 0;
  std::size_t count = 0;
  ASSERT_CUDA(cudaStreamGetCaptureInfo(side_, &capturing, &id, nullptr, &frontier, nullptr, &count));
  ASSERT_EQ(count, 1);
  std::size_t dependencies = 1;
  cudaGraphNode_t before = nullptr;
  ASSERT_CUDA(cudaGraphNodeGetDependencies(frontier[0], &before, nullptr, &dependencies));
  EXPECT_EQ(dependencies, 1);
  cudaGraphNodeType type{};
  ASSERT_CUDA(cudaGraphNodeGetType(before, &type));
  EXPECT_EQ(type, cudaGraphNodeTypeKernel);
  cudaGraph_t graph = nullptr;
  EXPECT_EQ(cudaStreamEndCapture(side_, &graph), cudaErrorStreamCaptureUnmatched);
  cudaGetLastError();
  ASSERT_CUDA(cudaEventRecord(event_, side_));
  ASSERT_CUDA(cudaStreamWaitEvent(stream_, event_, 0));
  ASSERT_CUDA(cudaStreamEndCapture(stream_, &graph));
  EXPECT_EQ(status(side_), cudaStreamCaptureStatusNone);
  ASSERT_CUDA(cudaGraphDestroy(graph));
}

TEST_F(SimulatorGraphs, AnUnsafeCallFailsAndSpoilsTheCapture) {
  ASSERT_CUDA(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeGlobal));
  void* pointer = nullptr;
  EXPECT_EQ(cudaMalloc(&pointer, kMib), cudaErrorStreamCaptureUnsupported);
  EXPECT_EQ(status(stream_), cudaStreamCaptureStatusInvalidated);
  cudaGraph_t graph = nullptr;
  EXPECT_EQ(cudaStreamEndCapture(stream_, &graph), cudaErrorStreamCaptureInvalidated);
  EXPECT_EQ(graph, nullptr);
  EXPECT_EQ(status(stream_), cudaStreamCaptureStatusNone);
  cudaGetLastError();
}

TEST_F(SimulatorGraphs, TheRelaxedModeAllowsUnsafeCalls) {
  ASSERT_CUDA(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeGlobal));
  cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
  ASSERT_CUDA(cudaThreadExchangeStreamCaptureMode(&mode));
  EXPECT_EQ(mode, cudaStreamCaptureModeGlobal);
  void* pointer = nullptr;
  EXPECT_CUDA(cudaMalloc(&pointer, kMib));
  EXPECT_CUDA(cudaFree(pointer));
  EXPECT_EQ(cudaStreamSynchronize(stream_), cudaErrorStreamCaptureUnsupported) << "never allowed on the stream itself";
  ASSERT_CUDA(cudaThreadExchangeStreamCaptureMode(&mode));
  cudaGraph_t graph = nullptr;
  EXPECT_EQ(cudaStreamEndCapture(stream_, &graph), cudaErrorStreamCaptureInvalidated);
  cudaGetLastError();
}

TEST_F(SimulatorGraphs, AThreadLocalCaptureLeavesOtherThreadsAlone) {
  const auto malloc_elsewhere = [] {
    cudaError_t error = cudaSuccess;
    std::thread([&] {
      void* pointer = nullptr;
      error = cudaMalloc(&pointer, kMib);
      cudaFree(pointer);
    }).join();
    return error;
  };
  cudaGraph_t graph = nullptr;
  ASSERT_CUDA(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal));
  EXPECT_CUDA(malloc_elsewhere());
  ASSERT_CUDA(cudaStreamEndCapture(stream_, &graph));
  ASSERT_CUDA(cudaGraphDestroy(graph));
  ASSERT_CUDA(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeGlobal));
  EXPECT_EQ(malloc_elsewhere(), cudaErrorStreamCaptureUnsupported);
  EXPECT_EQ(cudaStreamEndCapture(stream_, &graph), cudaErrorStreamCaptureInvalidated);
  cudaGetLastError();
}

TEST_F(SimulatorGraphs, AskingInAnotherThreadSpoilsAGlobalCaptureUnlessThatThreadIsRelaxed) {
  const auto elsewhere = [](cudaStreamCaptureMode mode, auto&& ask) {
    cudaError_t error = cudaSuccess;
    std::thread([&] {
      EXPECT_CUDA(cudaThreadExchangeStreamCaptureMode(&mode));
      error = ask();
    }).join();
    return error;
  };
  const auto spoils = [&](cudaStreamCaptureMode mode, auto&& ask) {
    EXPECT_CUDA(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeGlobal));
    const cudaError_t error = elsewhere(mode, ask);
    cudaGraph_t graph = nullptr;
    const cudaError_t end = cudaStreamEndCapture(stream_, &graph);
    cudaGetLastError();
    if (graph) {
      EXPECT_CUDA(cudaGraphDestroy(graph));
    }
    EXPECT_EQ(error == cudaErrorStreamCaptureUnsupported, end == cudaErrorStreamCaptureInvalidated);
    return end != cudaSuccess;
  };
  ASSERT_CUDA(cudaEventRecord(event_, side_));
  const auto each = [&](auto&& test) {
    test([&] { return cudaEventQuery(event_); });
    test([&] { return cudaEventSynchronize(event_); });
    test([&] { return cudaStreamQuery(side_); });
    test([&] { return cudaStreamSynchronize(side_); });
    test([&] {
      void* pointer = nullptr;
      const cudaError_t error = cudaHostAlloc(&pointer, 64, cudaHostAllocDefault);
      cudaFreeHost(pointer);
      return error;
    });
    test([&] {
      void* pointer = nullptr;
      const cudaError_t error = cudaMalloc(&pointer, 64);
      cudaFree(pointer);
      return error;
    });
  };
  each([&](auto&& ask) { EXPECT_TRUE(spoils(cudaStreamCaptureModeGlobal, ask)); });
  each([&](auto&& ask) { EXPECT_FALSE(spoils(cudaStreamCaptureModeThreadLocal, ask)); });
  each([&](auto&& ask) { EXPECT_FALSE(spoils(cudaStreamCaptureModeRelaxed, ask)); });
}

TEST_F(SimulatorGraphs, AnUnsafeCallSpoilsOnlyTheCapturesThatForbidIt) {
  cudaGraph_t graph = nullptr;
  std::thread([&] { EXPECT_CUDA(cudaStreamBeginCapture(side_, cudaStreamCaptureModeRelaxed)); }).join();
  ASSERT_CUDA(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeGlobal));
  void* pointer = nullptr;
  EXPECT_EQ(cudaMalloc(&pointer, kMib), cudaErrorStreamCaptureUnsupported);
  EXPECT_EQ(status(stream_), cudaStreamCaptureStatusInvalidated);
  EXPECT_EQ(status(side_), cudaStreamCaptureStatusActive);
  EXPECT_EQ(cudaStreamEndCapture(stream_, &graph), cudaErrorStreamCaptureInvalidated);
  cudaGetLastError();
  ASSERT_CUDA(cudaStreamEndCapture(side_, &graph));
  ASSERT_CUDA(cudaGraphDestroy(graph));
}

TEST_F(SimulatorGraphs, TheLegacyStreamCannotBeUsedWhileABlockingStreamCaptures) {
  cudaStream_t blocking = nullptr;
  ASSERT_CUDA(cudaStreamCreate(&blocking));
  void* pointer = nullptr;
  ASSERT_CUDA(cudaMalloc(&pointer, 64));
  char byte = 0;
  for (const bool by_copy : {true, false}) {
    ASSERT_CUDA(cudaStreamBeginCapture(blocking, cudaStreamCaptureModeRelaxed));
    cudaStreamCaptureStatus capturing{};
    EXPECT_EQ(cudaStreamIsCapturing(nullptr, &capturing), cudaErrorStreamCaptureImplicit);
    EXPECT_EQ(status(blocking), cudaStreamCaptureStatusActive) << "asking that spoils nothing";
    const cudaError_t error = by_copy ? cudaMemcpyAsync(pointer, &byte, 1, cudaMemcpyHostToDevice, nullptr)
                                      : cudaEventRecord(event_, cudaStreamLegacy);
    EXPECT_EQ(error, cudaErrorStreamCaptureImplicit);
    cudaGraph_t graph = nullptr;
    EXPECT_EQ(cudaStreamEndCapture(blocking, &graph), cudaErrorStreamCaptureInvalidated);
  }
  EXPECT_EQ(cudaStreamBeginCapture(nullptr, cudaStreamCaptureModeRelaxed), cudaErrorStreamCaptureUnsupported);
  cudaGetLastError();
  ASSERT_CUDA(cudaFree(pointer));
  ASSERT_CUDA(cudaStreamDestroy(blocking));
}

TEST_F(SimulatorGraphs, ANodeRunsBehindWhatItDependsOnWheneverThatWasAdded) {
  cudaGraph_t graph = nullptr;
  ASSERT_CUDA(cudaGraphCreate(&graph, 0));
  std::vector<int> ran;
  struct Step {
    std::vector<int>* ran;
    int number;
  };
  Step steps[] = {{&ran, 0}, {&ran, 1}};
  cudaGraphNode_t nodes[2] = {};
  for (int i : {0, 1}) {
    const cudaHostNodeParams params{
        [](void* step) { static_cast<Step*>(step)->ran->push_back(static_cast<Step*>(step)->number); }, &steps[i]};
    ASSERT_CUDA(cudaGraphAddHostNode(&nodes[i], graph, nullptr, 0, &params));
  }
  ASSERT_CUDA(cudaGraphAddDependencies(graph, &nodes[1], &nodes[0], nullptr, 1));
  cudaGraph_t clone = nullptr;
  ASSERT_CUDA(cudaGraphClone(&clone, graph));
  cudaGraphExec_t exec = nullptr;
  ASSERT_CUDA(cudaGraphInstantiate(&exec, clone, 0));
  ASSERT_CUDA(cudaGraphLaunch(exec, stream_));
  ASSERT_CUDA(cudaStreamSynchronize(stream_));
  EXPECT_EQ(ran, (std::vector<int>{1, 0}));
  ASSERT_CUDA(cudaGraphExecDestroy(exec));
  ASSERT_CUDA(cudaGraphDestroy(clone));

  ASSERT_CUDA(cudaGraphAddDependencies(graph, &nodes[0], &nodes[1], nullptr, 1));
  EXPECT_EQ(cudaGraphInstantiate(&exec, graph, 0), cudaErrorInvalidValue) << "a circle";
  cudaGetLastError();
  ASSERT_CUDA(cudaGraphDestroy(graph));
}

TEST_F(SimulatorGraphs, ASpoiltCaptureLeavesTheProgramsGraphAlone) {
  cudaGraph_t graph = nullptr;
  ASSERT_CUDA(cudaGraphCreate(&graph, 0));
  ASSERT_CUDA(cudaStreamBeginCaptureToGraph(stream_, graph, nullptr, nullptr, 0, cudaStreamCaptureModeGlobal));
  EXPECT_EQ(cudaDeviceSynchronize(), cudaErrorStreamCaptureUnsupported);
  cudaGraph_t ended = nullptr;
  EXPECT_EQ(cudaStreamEndCapture(stream_, &ended), cudaErrorStreamCaptureInvalidated);
  cudaGetLastError();
  EXPECT_CUDA(cudaGraphDestroy(graph));
}

TEST_F(SimulatorGraphs, AHostNodeRunsAtEachLaunch) {
  cudaGraph_t graph = nullptr;
  ASSERT_CUDA(cudaGraphCreate(&graph, 0));
  int runs = 0;
  cudaHostNodeParams params{[](void* count) { ++*static_cast<int*>(count); }, &runs};
  cudaGraphNode_t node = nullptr;
  ASSERT_CUDA(cudaGraphAddHostNode(&node, graph, nullptr, 0, &params));
  cudaGraphExec_t exec = nullptr;
  ASSERT_CUDA(cudaGraphInstantiate(&exec, graph, 0));
  for (int i = 0; i < 2; ++i) ASSERT_CUDA(cudaGraphLaunch(exec, stream_));
  ASSERT_CUDA(cudaStreamSynchronize(stream_));
  EXPECT_EQ(runs, 2);
  ASSERT_CUDA(cudaGraphExecDestroy(exec));
  ASSERT_CUDA(cudaGraphDestroy(graph));
}

}  // namespace
}  // namespace cachalot
