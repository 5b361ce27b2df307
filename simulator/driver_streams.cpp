// The driver's functions about streams, events, captures and graphs. Those that must leave the runtime's last error alone
// are calls of their own; the others are the runtime's.
#include "simulator/calls.h"

using namespace cachalot::simulator;

namespace {

CUresult result(cudaError_t error) { return static_cast<CUresult>(error); }

CUresult write(CUstream handle, CUdeviceptr address, std::uint64_t value, std::size_t bytes) {
  return driver_call([&](Process& process) {
    process.write_value(process.stream("cuStreamWriteValue", handle), reinterpret_cast<void*>(address), value, bytes);
    return cudaSuccess;
  });
}

}  // namespace

extern "C" {

CUresult cuStreamCreate(CUstream* stream, unsigned int flags) {
  return result(cudaStreamCreateWithFlags(stream, flags));
}
CUresult cuStreamCreateWithPriority(CUstream* stream, unsigned int flags, int priority) {
  return result(cudaStreamCreateWithPriority(stream, flags, priority));
}
CUresult cuStreamDestroy(CUstream stream) { return result(cudaStreamDestroy(stream)); }
CUresult cuStreamSynchronize(CUstream stream) { return result(cudaStreamSynchronize(stream)); }
CUresult cuStreamWaitEvent(CUstream stream, CUevent event, unsigned int flags) {
  return result(cudaStreamWaitEvent(stream, event, flags));
}
CUresult cuStreamBeginCapture(CUstream stream, CUstreamCaptureMode mode) {
  return result(cudaStreamBeginCapture(stream, static_cast<cudaStreamCaptureMode>(mode)));
}
CUresult cuStreamEndCapture(CUstream stream, CUgraph* graph) { return result(cudaStreamEndCapture(stream, graph)); }
CUresult cuGraphInstantiateWithFlags(CUgraphExec* exec, CUgraph graph, unsigned long long flags) {
  return result(cudaGraphInstantiateWithFlags(exec, graph, flags));
}
CUresult cuGraphLaunch(CUgraphExec exec, CUstream stream) { return result(cudaGraphLaunch(exec, stream)); }
CUresult cuGraphExecDestroy(CUgraphExec exec) { return result(cudaGraphExecDestroy(exec)); }
CUresult cuGraphDestroy(CUgraph graph) { return result(cudaGraphDestroy(graph)); }
CUresult cuStreamIsCapturing(CUstream stream, CUstreamCaptureStatus* status) {
  return result(cudaStreamIsCapturing(stream, reinterpret_cast<cudaStreamCaptureStatus*>(status)));
}
CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode* mode) {
  return result(cudaThreadExchangeStreamCaptureMode(reinterpret_cast<cudaStreamCaptureMode*>(mode)));
}
CUresult cuStreamGetPriority(CUstream stream, int* priority) { return result(cudaStreamGetPriority(stream, priority)); }
CUresult cuStreamGetFlags(CUstream stream, unsigned int* flags) { return result(cudaStreamGetFlags(stream, flags)); }
CUresult cuStreamGetId(CUstream stream, unsigned long long* id) { return result(cudaStreamGetId(stream, id)); }
CUresult cuStreamGetCtx(CUstream handle, CUcontext* context) {
  return driver_call([&](Process& process) {
    *context = reinterpret_cast<CUcontext>(&process.device(process.stream("cuStreamGetCtx", handle).device));
    return cudaSuccess;
  });
}
CUresult cuLaunchHostFunc(CUstream stream, CUhostFn function, void* data) {
  return result(cudaLaunchHostFunc(stream, function, data));
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

CUresult cuEventCreate(CUevent* event, unsigned int flags) { return result(cudaEventCreateWithFlags(event, flags)); }
CUresult cuEventDestroy(CUevent event) { return result(cudaEventDestroy(event)); }
CUresult cuEventRecord(CUevent event, CUstream stream) { return result(cudaEventRecord(event, stream)); }
CUresult cuEventSynchronize(CUevent event) { return result(cudaEventSynchronize(event)); }
CUresult cuEventElapsedTime(float* ms, CUevent start, CUevent end) {
  return result(cudaEventElapsedTime(ms, start, end));
}
CUresult cuEventQuery(CUevent event) {
  return driver_call([&](Process& process) {
    return process.query(process.event("cuEventQuery", event)) ? cudaSuccess : cudaErrorNotReady;
  });
}

}  // extern "C"
