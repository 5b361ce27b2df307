// The driver's functions about streams, events, captures and graphs.
#include "simulator/calls.h"

using namespace cachalot::simulator;

namespace {

CUresult write(CUstream handle, CUdeviceptr address, std::uint64_t value, std::size_t bytes) {
  return driver_call([&](Process& process) {
    process.write_value(process.stream("cuStreamWriteValue", handle), reinterpret_cast<void*>(address), value, bytes);
    return cudaSuccess;
  });
}

}  // namespace

extern "C" {

CUresult cuStreamCreate(CUstream* stream, unsigned int flags) {
  return by_runtime(cudaStreamCreateWithFlags, stream, flags);
}
CUresult cuStreamCreateWithPriority(CUstream* stream, unsigned int flags, int priority) {
  return by_runtime(cudaStreamCreateWithPriority, stream, flags, priority);
}
CUresult cuStreamDestroy(CUstream stream) { return by_runtime(cudaStreamDestroy, stream); }
CUresult cuStreamSynchronize(CUstream stream) { return by_runtime(cudaStreamSynchronize, stream); }
CUresult cuStreamWaitEvent(CUstream stream, CUevent event, unsigned int flags) {
  return by_runtime(cudaStreamWaitEvent, stream, event, flags);
}
CUresult cuStreamBeginCapture(CUstream stream, CUstreamCaptureMode mode) {
  return by_runtime(cudaStreamBeginCapture, stream, static_cast<cudaStreamCaptureMode>(mode));
}
CUresult cuStreamEndCapture(CUstream stream, CUgraph* graph) { return by_runtime(cudaStreamEndCapture, stream, graph); }
CUresult cuGraphInstantiateWithFlags(CUgraphExec* exec, CUgraph graph, unsigned long long flags) {
  return by_runtime(cudaGraphInstantiateWithFlags, exec, graph, flags);
}
CUresult cuGraphLaunch(CUgraphExec exec, CUstream stream) { return by_runtime(cudaGraphLaunch, exec, stream); }
CUresult cuGraphExecDestroy(CUgraphExec exec) { return by_runtime(cudaGraphExecDestroy, exec); }
CUresult cuGraphDestroy(CUgraph graph) { return by_runtime(cudaGraphDestroy, graph); }
CUresult cuStreamGetCaptureInfo(CUstream stream, CUstreamCaptureStatus* status, cuuint64_t* id, CUgraph* graph,
                                const CUgraphNode** dependencies, const CUgraphEdgeData** edges, size_t* count) {
  static_assert(sizeof(cuuint64_t) == sizeof(unsigned long long) &&
                sizeof(CUgraphEdgeData) == sizeof(cudaGraphEdgeData));
  return by_runtime(cudaStreamGetCaptureInfo, stream, reinterpret_cast<cudaStreamCaptureStatus*>(status),
                    reinterpret_cast<unsigned long long*>(id), graph, dependencies,
                    reinterpret_cast<const cudaGraphEdgeData**>(edges), count);
}
#undef cuStreamGetCaptureInfo  // its first form, of CUDA 10.1
CACHALOT_SIMULATOR_EXPORT CUresult cuStreamGetCaptureInfo(CUstream stream, CUstreamCaptureStatus* status,
                                                          cuuint64_t* id) {
  return cuStreamGetCaptureInfo_v3(stream, status, id, nullptr, nullptr, nullptr, nullptr);
}
CUresult cuStreamIsCapturing(CUstream stream, CUstreamCaptureStatus* status) {
  return by_runtime(cudaStreamIsCapturing, stream, reinterpret_cast<cudaStreamCaptureStatus*>(status));
}
CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode* mode) {
  return by_runtime(cudaThreadExchangeStreamCaptureMode, reinterpret_cast<cudaStreamCaptureMode*>(mode));
}
CUresult cuStreamGetPriority(CUstream stream, int* priority) {
  return by_runtime(cudaStreamGetPriority, stream, priority);
}
CUresult cuStreamGetFlags(CUstream stream, unsigned int* flags) {
  return by_runtime(cudaStreamGetFlags, stream, flags);
}
CUresult cuStreamGetId(CUstream stream, unsigned long long* id) { return by_runtime(cudaStreamGetId, stream, id); }
CUresult cuStreamGetCtx(CUstream handle, CUcontext* context) {
  return driver_call([&](Process& process) {
    *context = reinterpret_cast<CUcontext>(&process.device(process.stream("cuStreamGetCtx", handle).device));
    return cudaSuccess;
  });
}
CUresult cuLaunchHostFunc(CUstream stream, CUhostFn function, void* data) {
  return by_runtime(cudaLaunchHostFunc, stream, function, data);
}

CUresult cuStreamQuery(CUstream stream) {
  return driver_call([&](Process& process) {
    return process.query(process.stream("cuStreamQuery", stream)) ? cudaSuccess : cudaErrorNotReady;
  });
}

CUresult cuStreamWriteValue32(CUstream stream, CUdeviceptr address, cuuint32_t value, unsigned int) {
  return write(stream, address, value, sizeof(value));
}
CUresult cuStreamWriteValue64(CUstream stream, CUdeviceptr address, cuuint64_t value, unsigned int) {
  return write(stream, address, value, sizeof(value));
}

CUresult cuEventCreate(CUevent* event, unsigned int flags) {
  return by_runtime(cudaEventCreateWithFlags, event, flags);
}
CUresult cuEventDestroy(CUevent event) { return by_runtime(cudaEventDestroy, event); }
CUresult cuEventRecord(CUevent event, CUstream stream) { return by_runtime(cudaEventRecord, event, stream); }
CUresult cuEventSynchronize(CUevent event) { return by_runtime(cudaEventSynchronize, event); }
CUresult cuEventElapsedTime(float* ms, CUevent start, CUevent end) {
  return by_runtime(cudaEventElapsedTime, ms, start, end);
}
CUresult cuEventQuery(CUevent event) {
  return driver_call([&](Process& process) {
    return process.query(process.event("cuEventQuery", event)) ? cudaSuccess : cudaErrorNotReady;
  });
}

}  // extern "C"
