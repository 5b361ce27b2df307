// The driver's functions about streams, events, captures and graphs. Its nodes and graphs are the runtime's.
#include <cstring>

#include "simulator/state/calls.h"

using namespace cachalot::simulator;

namespace {

CUresult write(CUstream handle, CUdeviceptr address, std::uint64_t value, std::size_t bytes) {
  return driver_call([&](Process& process) {
    process.writes().launch(process.streams().at("cuStreamWriteValue", handle), reinterpret_cast<void*>(address), value,
                            bytes);
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

}  // namespace

extern "C" {

CACHALOT_SIMULATOR_BY_RUNTIME_IN_CONTEXT(2, cuStreamCreate, cudaStreamCreateWithFlags)
CACHALOT_SIMULATOR_BY_RUNTIME_IN_CONTEXT(3, cuStreamCreateWithPriority, cudaStreamCreateWithPriority)
CACHALOT_SIMULATOR_BY_RUNTIME_IN_CONTEXT(1, cuStreamDestroy, cudaStreamDestroy)
CACHALOT_SIMULATOR_BY_RUNTIME_IN_CONTEXT(1, cuStreamSynchronize, cudaStreamSynchronize)
CACHALOT_SIMULATOR_BY_RUNTIME_IN_CONTEXT(3, cuStreamWaitEvent, cudaStreamWaitEvent)
CACHALOT_SIMULATOR_BY_RUNTIME(2, cuStreamBeginCapture, cudaStreamBeginCapture)
CACHALOT_SIMULATOR_BY_RUNTIME(2, cuStreamEndCapture, cudaStreamEndCapture)
CACHALOT_SIMULATOR_BY_RUNTIME(3, cuGraphInstantiateWithFlags, cudaGraphInstantiateWithFlags)
CACHALOT_SIMULATOR_BY_RUNTIME(2, cuGraphLaunch, cudaGraphLaunch)
CACHALOT_SIMULATOR_BY_RUNTIME(1, cuGraphExecDestroy, cudaGraphExecDestroy)
CACHALOT_SIMULATOR_BY_RUNTIME(1, cuGraphDestroy, cudaGraphDestroy)
CACHALOT_SIMULATOR_BY_RUNTIME(2, cuStreamIsCapturing, cudaStreamIsCapturing)
CACHALOT_SIMULATOR_BY_RUNTIME(1, cuThreadExchangeStreamCaptureMode, cudaThreadExchangeStreamCaptureMode)
CACHALOT_SIMULATOR_BY_RUNTIME_IN_CONTEXT(2, cuStreamGetPriority, cudaStreamGetPriority)
CACHALOT_SIMULATOR_BY_RUNTIME_IN_CONTEXT(2, cuStreamGetFlags, cudaStreamGetFlags)
CACHALOT_SIMULATOR_BY_RUNTIME(2, cuStreamGetId, cudaStreamGetId)
CACHALOT_SIMULATOR_BY_RUNTIME_IN_CONTEXT(2, cuStreamGetDevice, cudaStreamGetDevice)
CACHALOT_SIMULATOR_BY_RUNTIME(3, cuStreamGetAttribute, cudaStreamGetAttribute)
CACHALOT_SIMULATOR_BY_RUNTIME(3, cuStreamSetAttribute, cudaStreamSetAttribute)
CACHALOT_SIMULATOR_BY_RUNTIME(2, cuStreamCopyAttributes, cudaStreamCopyAttributes)
CACHALOT_SIMULATOR_BY_RUNTIME_IN_CONTEXT(4, cuStreamAttachMemAsync, cudaStreamAttachMemAsync)
CACHALOT_SIMULATOR_BY_RUNTIME_IN_CONTEXT(4, cuStreamAddCallback, cudaStreamAddCallback)
CUresult cuStreamGetCtx_v2(CUstream stream, CUcontext* context, CUgreenCtx* green_context) {
  if (green_context) *green_context = nullptr;
  return cuStreamGetCtx(stream, context);
}
CUresult cuStreamGetCtx(CUstream handle, CUcontext* context) {
  return call_in_context(__func__, [&](Process& process) {
    const StreamState& stream = process.streams().at("cuStreamGetCtx", handle);
    *context = stream.context ? stream.context : reinterpret_cast<CUcontext>(&process.devices().at(stream.device));
  });
}
CACHALOT_SIMULATOR_BY_RUNTIME_IN_CONTEXT(3, cuLaunchHostFunc, cudaLaunchHostFunc)

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

CACHALOT_SIMULATOR_BY_RUNTIME_IN_CONTEXT(2, cuEventCreate, cudaEventCreateWithFlags)
CACHALOT_SIMULATOR_BY_RUNTIME_IN_CONTEXT(1, cuEventDestroy, cudaEventDestroy)
CACHALOT_SIMULATOR_BY_RUNTIME_IN_CONTEXT(2, cuEventRecord, cudaEventRecord)
CACHALOT_SIMULATOR_BY_RUNTIME_IN_CONTEXT(3, cuEventRecordWithFlags, cudaEventRecordWithFlags)
CACHALOT_SIMULATOR_BY_RUNTIME(2, cuIpcGetEventHandle, cudaIpcGetEventHandle)
CUresult cuIpcOpenEventHandle(CUevent* event, CUipcEventHandle handle) {
  cudaIpcEventHandle_t runtime_handle;
  std::memcpy(&runtime_handle, &handle, sizeof(handle));
  return by_runtime_in_context(__func__, cudaIpcOpenEventHandle, event, runtime_handle);
}
CACHALOT_SIMULATOR_BY_RUNTIME_IN_CONTEXT(1, cuEventSynchronize, cudaEventSynchronize)
CACHALOT_SIMULATOR_BY_RUNTIME_IN_CONTEXT(3, cuEventElapsedTime, cudaEventElapsedTime)
CUresult cuEventQuery(CUevent event) {
  return driver_call([&](Process& process) {
    return process.waits().query(process.events().at("cuEventQuery", event)) ? cudaSuccess : cudaErrorNotReady;
  });
}

// ---- Captures -------------------------------------------------------------------------------------------------------

CACHALOT_SIMULATOR_BY_RUNTIME(6, cuStreamBeginCaptureToGraph, cudaStreamBeginCaptureToGraph)

CACHALOT_SIMULATOR_BY_RUNTIME(7, cuStreamGetCaptureInfo, cudaStreamGetCaptureInfo)

CACHALOT_SIMULATOR_BY_RUNTIME(5, cuStreamUpdateCaptureDependencies, cudaStreamUpdateCaptureDependencies)

// ---- Graphs ---------------------------------------------------------------------------------------------------------

CACHALOT_SIMULATOR_BY_RUNTIME(2, cuGraphCreate, cudaGraphCreate)
CACHALOT_SIMULATOR_BY_RUNTIME(2, cuGraphClone, cudaGraphClone)
CACHALOT_SIMULATOR_BY_RUNTIME(3, cuGraphGetNodes, cudaGraphGetNodes)
CACHALOT_SIMULATOR_BY_RUNTIME(3, cuGraphGetRootNodes, cudaGraphGetRootNodes)
CACHALOT_SIMULATOR_BY_RUNTIME(5, cuGraphGetEdges, cudaGraphGetEdges)
CACHALOT_SIMULATOR_BY_RUNTIME(4, cuGraphNodeGetDependencies, cudaGraphNodeGetDependencies)
CACHALOT_SIMULATOR_BY_RUNTIME(4, cuGraphNodeGetDependentNodes, cudaGraphNodeGetDependentNodes)
CACHALOT_SIMULATOR_BY_RUNTIME(2, cuGraphNodeGetType, cudaGraphNodeGetType)
CACHALOT_SIMULATOR_BY_RUNTIME(1, cuGraphDestroyNode, cudaGraphDestroyNode)
CACHALOT_SIMULATOR_BY_RUNTIME(5, cuGraphAddDependencies, cudaGraphAddDependencies)
CACHALOT_SIMULATOR_BY_RUNTIME(5, cuGraphRemoveDependencies, cudaGraphRemoveDependencies)
CACHALOT_SIMULATOR_BY_RUNTIME(3, cuGraphDebugDotPrint, cudaGraphDebugDotPrint)

CACHALOT_SIMULATOR_BY_RUNTIME(4, cuGraphAddEmptyNode, cudaGraphAddEmptyNode)
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
CACHALOT_SIMULATOR_BY_RUNTIME(5, cuGraphAddChildGraphNode, cudaGraphAddChildGraphNode)
CACHALOT_SIMULATOR_BY_RUNTIME(5, cuGraphAddEventRecordNode, cudaGraphAddEventRecordNode)
CACHALOT_SIMULATOR_BY_RUNTIME(5, cuGraphAddEventWaitNode, cudaGraphAddEventWaitNode)

// ---- Graphs ready to run --------------------------------------------------------------------------------------------

CACHALOT_SIMULATOR_BY_RUNTIME(3, cuGraphInstantiateWithParams, cudaGraphInstantiateWithParams)
CACHALOT_SIMULATOR_BY_RUNTIME(2, cuGraphExecGetFlags, cudaGraphExecGetFlags)
CACHALOT_SIMULATOR_BY_RUNTIME(3, cuGraphExecUpdate, cudaGraphExecUpdate)
CACHALOT_SIMULATOR_BY_RUNTIME(2, cuGraphUpload, cudaGraphUpload)

}  // extern "C"
