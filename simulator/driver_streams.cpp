// The driver's functions about streams, events, captures and graphs.
#include <cstring>

#include "simulator/calls.h"

using namespace cachalot::simulator;

namespace {

CUresult write(CUstream handle, CUdeviceptr address, std::uint64_t value, std::size_t bytes) {
  return driver_call([&](Process& process) {
    process.writes().launch(process.streams().at("cuStreamWriteValue", handle), reinterpret_cast<void*>(address), value,
                            bytes);
    return cudaSuccess;
  });
}

}  // namespace

extern "C" {

CUresult cuStreamCreate(CUstream* stream, unsigned int flags) {
  return by_runtime_in_context(__func__, cudaStreamCreateWithFlags, stream, flags);
}
CUresult cuStreamCreateWithPriority(CUstream* stream, unsigned int flags, int priority) {
  return by_runtime_in_context(__func__, cudaStreamCreateWithPriority, stream, flags, priority);
}
CUresult cuStreamDestroy(CUstream stream) { return by_runtime_in_context(__func__, cudaStreamDestroy, stream); }
CUresult cuStreamSynchronize(CUstream stream) { return by_runtime_in_context(__func__, cudaStreamSynchronize, stream); }
CUresult cuStreamWaitEvent(CUstream stream, CUevent event, unsigned int flags) {
  return by_runtime_in_context(__func__, cudaStreamWaitEvent, stream, event, flags);
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
CUresult cuStreamIsCapturing(CUstream stream, CUstreamCaptureStatus* status) {
  return by_runtime(cudaStreamIsCapturing, stream, reinterpret_cast<cudaStreamCaptureStatus*>(status));
}
CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode* mode) {
  return by_runtime(cudaThreadExchangeStreamCaptureMode, reinterpret_cast<cudaStreamCaptureMode*>(mode));
}
CUresult cuStreamGetPriority(CUstream stream, int* priority) {
  return by_runtime_in_context(__func__, cudaStreamGetPriority, stream, priority);
}
CUresult cuStreamGetFlags(CUstream stream, unsigned int* flags) {
  return by_runtime_in_context(__func__, cudaStreamGetFlags, stream, flags);
}
CUresult cuStreamGetId(CUstream stream, unsigned long long* id) { return by_runtime(cudaStreamGetId, stream, id); }
CUresult cuStreamGetDevice(CUstream stream, CUdevice* device) {
  return by_runtime_in_context(__func__, cudaStreamGetDevice, stream, device);
}
CUresult cuStreamGetAttribute(CUstream stream, CUstreamAttrID attribute, CUstreamAttrValue* value) {
  static_assert(sizeof(CUstreamAttrValue) == sizeof(cudaStreamAttrValue));
  return by_runtime(cudaStreamGetAttribute, stream, static_cast<cudaStreamAttrID>(attribute),
                    reinterpret_cast<cudaStreamAttrValue*>(value));
}
CUresult cuStreamSetAttribute(CUstream stream, CUstreamAttrID attribute, const CUstreamAttrValue* value) {
  return by_runtime(cudaStreamSetAttribute, stream, static_cast<cudaStreamAttrID>(attribute),
                    reinterpret_cast<const cudaStreamAttrValue*>(value));
}
CUresult cuStreamCopyAttributes(CUstream to, CUstream from) { return by_runtime(cudaStreamCopyAttributes, to, from); }
CUresult cuStreamAttachMemAsync(CUstream stream, CUdeviceptr address, size_t bytes, unsigned int flags) {
  return by_runtime_in_context(__func__, cudaStreamAttachMemAsync, stream, reinterpret_cast<void*>(address), bytes,
                               flags);
}
CUresult cuStreamAddCallback(CUstream stream, CUstreamCallback callback, void* data, unsigned int flags) {
  return by_runtime_in_context(__func__, cudaStreamAddCallback, stream,
                               reinterpret_cast<cudaStreamCallback_t>(callback), data, flags);
}
CUresult cuStreamGetCtx_v2(CUstream stream, CUcontext* context, CUgreenCtx* green_context) {
  if (green_context) *green_context = nullptr;
  return cuStreamGetCtx(stream, context);
}
CUresult cuStreamGetCtx(CUstream handle, CUcontext* context) {
  return call_in_context(__func__, [&](Process& process) {
    const StreamState& stream = process.streams().at("cuStreamGetCtx", handle);
    *context = stream.context ? stream.context : reinterpret_cast<CUcontext>(&process.devices().at(stream.device));
    return cudaSuccess;
  });
}
CUresult cuLaunchHostFunc(CUstream stream, CUhostFn function, void* data) {
  return by_runtime_in_context(__func__, cudaLaunchHostFunc, stream, function, data);
}

CUresult cuStreamQuery(CUstream stream) {
  return call_in_context(__func__, [&](Process& process) {
    return process.waits().query(process.streams().at("cuStreamQuery", stream)) ? cudaSuccess : cudaErrorNotReady;
  });
}

CUresult cuStreamWriteValue32(CUstream stream, CUdeviceptr address, cuuint32_t value, unsigned int) {
  return write(stream, address, value, sizeof(value));
}
CUresult cuStreamWriteValue64(CUstream stream, CUdeviceptr address, cuuint64_t value, unsigned int) {
  return write(stream, address, value, sizeof(value));
}

CUresult cuEventCreate(CUevent* event, unsigned int flags) {
  return by_runtime_in_context(__func__, cudaEventCreateWithFlags, event, flags);
}
CUresult cuEventDestroy(CUevent event) { return by_runtime_in_context(__func__, cudaEventDestroy, event); }
CUresult cuEventRecord(CUevent event, CUstream stream) {
  return by_runtime_in_context(__func__, cudaEventRecord, event, stream);
}
CUresult cuEventRecordWithFlags(CUevent event, CUstream stream, unsigned int flags) {
  return by_runtime_in_context(__func__, cudaEventRecordWithFlags, event, stream, flags);
}
CUresult cuIpcGetEventHandle(CUipcEventHandle* handle, CUevent event) {
  static_assert(sizeof(CUipcEventHandle) == sizeof(cudaIpcEventHandle_t));
  return by_runtime(cudaIpcGetEventHandle, reinterpret_cast<cudaIpcEventHandle_t*>(handle), event);
}
CUresult cuIpcOpenEventHandle(CUevent* event, CUipcEventHandle handle) {
  cudaIpcEventHandle_t runtime_handle;
  std::memcpy(&runtime_handle, &handle, sizeof(handle));
  return by_runtime_in_context(__func__, cudaIpcOpenEventHandle, event, runtime_handle);
}
CUresult cuEventSynchronize(CUevent event) { return by_runtime_in_context(__func__, cudaEventSynchronize, event); }
CUresult cuEventElapsedTime(float* ms, CUevent start, CUevent end) {
  return by_runtime_in_context(__func__, cudaEventElapsedTime, ms, start, end);
}
CUresult cuEventQuery(CUevent event) {
  return driver_call([&](Process& process) {
    return process.waits().query(process.events().at("cuEventQuery", event)) ? cudaSuccess : cudaErrorNotReady;
  });
}

}  // extern "C"
