// The driver's functions about streams, events, captures and graphs. Its nodes and graphs are the runtime's.
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

// The driver describes a kernel by the same fields in the same places, and may append more.
cudaKernelNodeParams kernel_params(const CUDA_KERNEL_NODE_PARAMS& params) {
  return {.func = params.func ? static_cast<void*>(params.func) : static_cast<void*>(params.kern),
          .gridDim = {params.gridDimX, params.gridDimY, params.gridDimZ},
          .blockDim = {params.blockDimX, params.blockDimY, params.blockDimZ},
          .sharedMemBytes = params.sharedMemBytes,
          .kernelParams = params.kernelParams,
          .extra = params.extra};
}

const cudaGraphEdgeData* edges_of(const CUgraphEdgeData* edges) {
  static_assert(sizeof(CUgraphEdgeData) == sizeof(cudaGraphEdgeData));
  return reinterpret_cast<const cudaGraphEdgeData*>(edges);
}
cudaGraphEdgeData* edges_of(CUgraphEdgeData* edges) { return reinterpret_cast<cudaGraphEdgeData*>(edges); }

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

// ---- Captures -------------------------------------------------------------------------------------------------------

CUresult cuStreamBeginCaptureToGraph(CUstream stream, CUgraph graph, const CUgraphNode* dependencies,
                                     const CUgraphEdgeData* edges, size_t count, CUstreamCaptureMode mode) {
  return by_runtime(cudaStreamBeginCaptureToGraph, stream, graph, dependencies, edges_of(edges), count,
                    static_cast<cudaStreamCaptureMode>(mode));
}

CUresult cuStreamGetCaptureInfo(CUstream stream, CUstreamCaptureStatus* status, cuuint64_t* id, CUgraph* graph,
                                const CUgraphNode** dependencies, const CUgraphEdgeData** edges, size_t* count) {
  static_assert(sizeof(cuuint64_t) == sizeof(unsigned long long));
  return by_runtime(cudaStreamGetCaptureInfo, stream, reinterpret_cast<cudaStreamCaptureStatus*>(status),
                    reinterpret_cast<unsigned long long*>(id), graph, dependencies,
                    reinterpret_cast<const cudaGraphEdgeData**>(edges), count);
}

CUresult cuStreamUpdateCaptureDependencies(CUstream stream, CUgraphNode* dependencies, const CUgraphEdgeData* edges,
                                           size_t count, unsigned int flags) {
  return by_runtime(cudaStreamUpdateCaptureDependencies, stream, dependencies, edges_of(edges), count, flags);
}

// ---- Graphs ---------------------------------------------------------------------------------------------------------

CUresult cuGraphCreate(CUgraph* graph, unsigned int flags) { return by_runtime(cudaGraphCreate, graph, flags); }
CUresult cuGraphClone(CUgraph* clone, CUgraph graph) { return by_runtime(cudaGraphClone, clone, graph); }
CUresult cuGraphGetNodes(CUgraph graph, CUgraphNode* nodes, size_t* count) {
  return by_runtime(cudaGraphGetNodes, graph, nodes, count);
}
CUresult cuGraphGetRootNodes(CUgraph graph, CUgraphNode* nodes, size_t* count) {
  return by_runtime(cudaGraphGetRootNodes, graph, nodes, count);
}
CUresult cuGraphGetEdges(CUgraph graph, CUgraphNode* from, CUgraphNode* to, CUgraphEdgeData* edges, size_t* count) {
  return by_runtime(cudaGraphGetEdges, graph, from, to, edges_of(edges), count);
}
CUresult cuGraphNodeGetDependencies(CUgraphNode node, CUgraphNode* dependencies, CUgraphEdgeData* edges,
                                    size_t* count) {
  return by_runtime(cudaGraphNodeGetDependencies, node, dependencies, edges_of(edges), count);
}
CUresult cuGraphNodeGetDependentNodes(CUgraphNode node, CUgraphNode* dependents, CUgraphEdgeData* edges,
                                      size_t* count) {
  return by_runtime(cudaGraphNodeGetDependentNodes, node, dependents, edges_of(edges), count);
}
CUresult cuGraphNodeGetType(CUgraphNode node, CUgraphNodeType* type) {
  return by_runtime(cudaGraphNodeGetType, node, reinterpret_cast<cudaGraphNodeType*>(type));
}
CUresult cuGraphDestroyNode(CUgraphNode node) { return by_runtime(cudaGraphDestroyNode, node); }
CUresult cuGraphAddDependencies(CUgraph graph, const CUgraphNode* from, const CUgraphNode* to,
                                const CUgraphEdgeData* edges, size_t count) {
  return by_runtime(cudaGraphAddDependencies, graph, from, to, edges_of(edges), count);
}
CUresult cuGraphRemoveDependencies(CUgraph graph, const CUgraphNode* from, const CUgraphNode* to,
                                   const CUgraphEdgeData* edges, size_t count) {
  return by_runtime(cudaGraphRemoveDependencies, graph, from, to, edges_of(edges), count);
}
CUresult cuGraphDebugDotPrint(CUgraph graph, const char* path, unsigned int flags) {
  return by_runtime(cudaGraphDebugDotPrint, graph, path, flags);
}

CUresult cuGraphAddEmptyNode(CUgraphNode* node, CUgraph graph, const CUgraphNode* dependencies, size_t count) {
  return by_runtime(cudaGraphAddEmptyNode, node, graph, dependencies, count);
}
CUresult cuGraphAddKernelNode(CUgraphNode* node, CUgraph graph, const CUgraphNode* dependencies, size_t count,
                              const CUDA_KERNEL_NODE_PARAMS* params) {
  const cudaKernelNodeParams kernel = kernel_params(*params);
  return by_runtime(cudaGraphAddKernelNode, node, graph, dependencies, count, &kernel);
}
CUresult cuGraphKernelNodeGetParams(CUgraphNode node, CUDA_KERNEL_NODE_PARAMS* params) {
  cudaKernelNodeParams kernel{};
  const CUresult error = by_runtime(cudaGraphKernelNodeGetParams, node, &kernel);
  if (error != CUDA_SUCCESS) return error;
  *params = {.func = static_cast<CUfunction>(kernel.func),
             .gridDimX = kernel.gridDim.x,
             .gridDimY = kernel.gridDim.y,
             .gridDimZ = kernel.gridDim.z,
             .blockDimX = kernel.blockDim.x,
             .blockDimY = kernel.blockDim.y,
             .blockDimZ = kernel.blockDim.z,
             .sharedMemBytes = kernel.sharedMemBytes,
             .kernelParams = kernel.kernelParams,
             .extra = kernel.extra,
             .kern = nullptr,
             .ctx = nullptr};
  return CUDA_SUCCESS;
}
CUresult cuGraphAddMemcpyNode(CUgraphNode* node, CUgraph graph, const CUgraphNode* dependencies, size_t count,
                              const CUDA_MEMCPY3D*, CUcontext) {
  return by_runtime(cudaGraphAddMemcpyNode, node, graph, dependencies, count, nullptr);
}
CUresult cuGraphAddMemsetNode(CUgraphNode* node, CUgraph graph, const CUgraphNode* dependencies, size_t count,
                              const CUDA_MEMSET_NODE_PARAMS*, CUcontext) {
  return by_runtime(cudaGraphAddMemsetNode, node, graph, dependencies, count, nullptr);
}
CUresult cuGraphAddHostNode(CUgraphNode* node, CUgraph graph, const CUgraphNode* dependencies, size_t count,
                            const CUDA_HOST_NODE_PARAMS* params) {
  const cudaHostNodeParams host{.fn = params->fn, .userData = params->userData};
  return by_runtime(cudaGraphAddHostNode, node, graph, dependencies, count, &host);
}
CUresult cuGraphAddChildGraphNode(CUgraphNode* node, CUgraph graph, const CUgraphNode* dependencies, size_t count,
                                  CUgraph child) {
  return by_runtime(cudaGraphAddChildGraphNode, node, graph, dependencies, count, child);
}
CUresult cuGraphAddEventRecordNode(CUgraphNode* node, CUgraph graph, const CUgraphNode* dependencies, size_t count,
                                   CUevent event) {
  return by_runtime(cudaGraphAddEventRecordNode, node, graph, dependencies, count, event);
}
CUresult cuGraphAddEventWaitNode(CUgraphNode* node, CUgraph graph, const CUgraphNode* dependencies, size_t count,
                                 CUevent event) {
  return by_runtime(cudaGraphAddEventWaitNode, node, graph, dependencies, count, event);
}

// ---- Graphs ready to run --------------------------------------------------------------------------------------------

CUresult cuGraphInstantiateWithParams(CUgraphExec* exec, CUgraph graph, CUDA_GRAPH_INSTANTIATE_PARAMS* params) {
  static_assert(sizeof(CUDA_GRAPH_INSTANTIATE_PARAMS) == sizeof(cudaGraphInstantiateParams));
  return by_runtime(cudaGraphInstantiateWithParams, exec, graph, reinterpret_cast<cudaGraphInstantiateParams*>(params));
}
CUresult cuGraphExecGetFlags(CUgraphExec exec, cuuint64_t* flags) {
  return by_runtime(cudaGraphExecGetFlags, exec, reinterpret_cast<unsigned long long*>(flags));
}
CUresult cuGraphExecUpdate(CUgraphExec exec, CUgraph graph, CUgraphExecUpdateResultInfo* result) {
  static_assert(sizeof(CUgraphExecUpdateResultInfo) == sizeof(cudaGraphExecUpdateResultInfo));
  return by_runtime(cudaGraphExecUpdate, exec, graph, reinterpret_cast<cudaGraphExecUpdateResultInfo*>(result));
}
CUresult cuGraphUpload(CUgraphExec exec, CUstream stream) { return by_runtime(cudaGraphUpload, exec, stream); }

}  // extern "C"
