// Other forms of the driver's functions. Older ones: the symbols that programs of older versions of CUDA look up; cuda.h names the
// newest form of each without its suffix. And those of programs that are compiled with a default stream for each thread.
#include "simulator/state/calls.h"

using namespace cachalot::simulator;

// cuda.h makes macros of these names: another name in C++, the same symbol.
#define OLDER_FORM(name, ...)                                                                          \
  extern "C" __attribute__((visibility("default"))) CUresult older_##name(__VA_ARGS__) __asm__(#name); \
  CUresult older_##name(__VA_ARGS__)

// The newest form with its first `count` parameters; the rest stand for those that the older one lacks.
#define FIRST_PARAMETERS_FORM(count, name, ...)                               \
  extern "C" __attribute__((visibility("default")))                           \
  CUresult older_##name(CACHALOT_PARAMETERS_##count(name)) __asm__(#name);    \
  CUresult older_##name(CACHALOT_PARAMETERS_##count(name)) {                  \
    return name(CACHALOT_ARGUMENTS_##count(name) __VA_OPT__(, ) __VA_ARGS__); \
  }

// ---- Devices, contexts, streams and events --------------------------------------------------------------------------

FIRST_PARAMETERS_FORM(4, cuGetProcAddress, nullptr)
FIRST_PARAMETERS_FORM(2, cuDeviceGetUuid)
FIRST_PARAMETERS_FORM(1, cuDevicePrimaryCtxRelease)
FIRST_PARAMETERS_FORM(1, cuDevicePrimaryCtxReset)
FIRST_PARAMETERS_FORM(2, cuDevicePrimaryCtxSetFlags)
OLDER_FORM(cuCtxCreate, CUcontext* context, unsigned int flags, CUdevice device) {
  return cuCtxCreate(context, nullptr, flags, device);
}
OLDER_FORM(cuCtxCreate_v2, CUcontext* context, unsigned int flags, CUdevice device) {
  return cuCtxCreate(context, nullptr, flags, device);
}
OLDER_FORM(cuCtxCreate_v3, CUcontext* context, CUexecAffinityParam*, int, unsigned int flags, CUdevice device) {
  return cuCtxCreate(context, nullptr, flags, device);
}
FIRST_PARAMETERS_FORM(1, cuCtxDestroy)
FIRST_PARAMETERS_FORM(1, cuCtxPushCurrent)
FIRST_PARAMETERS_FORM(1, cuCtxPopCurrent)
FIRST_PARAMETERS_FORM(1, cuStreamDestroy)
FIRST_PARAMETERS_FORM(1, cuEventDestroy)
FIRST_PARAMETERS_FORM(3, cuEventElapsedTime)
FIRST_PARAMETERS_FORM(4, cuStreamWriteValue32)
FIRST_PARAMETERS_FORM(4, cuStreamWriteValue64)

// ---- Memory and code ------------------------------------------------------------------------------------------------

FIRST_PARAMETERS_FORM(3, cuMemHostRegister)
FIRST_PARAMETERS_FORM(3, cuIpcOpenMemHandle)
OLDER_FORM(cuMemPrefetchAsync, CUdeviceptr address, size_t bytes, CUdevice, CUstream stream) {
  return cuMemPrefetchAsync(address, bytes, {}, 0, stream);
}
OLDER_FORM(cuMemAdvise, CUdeviceptr address, size_t bytes, CUmem_advise advice, CUdevice) {
  return cuMemAdvise(address, bytes, advice, {});
}
OLDER_FORM(cuMemcpyBatchAsync, CUdeviceptr* to, CUdeviceptr* from, size_t* sizes, size_t count,
           CUmemcpyAttributes* attributes, size_t* first_copies, size_t attributes_count, size_t* failed,
           CUstream stream) {
  const CUresult error = cuMemcpyBatchAsync(to, from, sizes, count, attributes, first_copies, attributes_count, stream);
  if (error != CUDA_SUCCESS && failed) *failed = SIZE_MAX;
  return error;
}
FIRST_PARAMETERS_FORM(4, cuLinkCreate)
FIRST_PARAMETERS_FORM(8, cuLinkAddData)
FIRST_PARAMETERS_FORM(6, cuLinkAddFile)

// ---- Captures and graphs --------------------------------------------------------------------------------------------

FIRST_PARAMETERS_FORM(1, cuStreamBeginCapture, CU_STREAM_CAPTURE_MODE_GLOBAL)
FIRST_PARAMETERS_FORM(3, cuStreamGetCaptureInfo, nullptr, nullptr, nullptr, nullptr)
OLDER_FORM(cuStreamGetCaptureInfo_v2, CUstream stream, CUstreamCaptureStatus* status, cuuint64_t* id, CUgraph* graph,
           const CUgraphNode** dependencies, size_t* count) {
  return cuStreamGetCaptureInfo(stream, status, id, graph, dependencies, nullptr, count);
}
OLDER_FORM(cuStreamUpdateCaptureDependencies, CUstream stream, CUgraphNode* dependencies, size_t count,
           unsigned int flags) {
  return cuStreamUpdateCaptureDependencies(stream, dependencies, nullptr, count, flags);
}
OLDER_FORM(cuGraphGetEdges, CUgraph graph, CUgraphNode* from, CUgraphNode* to, size_t* count) {
  return cuGraphGetEdges(graph, from, to, nullptr, count);
}
OLDER_FORM(cuGraphNodeGetDependencies, CUgraphNode node, CUgraphNode* dependencies, size_t* count) {
  return cuGraphNodeGetDependencies(node, dependencies, nullptr, count);
}
OLDER_FORM(cuGraphNodeGetDependentNodes, CUgraphNode node, CUgraphNode* dependents, size_t* count) {
  return cuGraphNodeGetDependentNodes(node, dependents, nullptr, count);
}
OLDER_FORM(cuGraphAddDependencies, CUgraph graph, const CUgraphNode* from, const CUgraphNode* to, size_t count) {
  return cuGraphAddDependencies(graph, from, to, nullptr, count);
}
OLDER_FORM(cuGraphRemoveDependencies, CUgraph graph, const CUgraphNode* from, const CUgraphNode* to, size_t count) {
  return cuGraphRemoveDependencies(graph, from, to, nullptr, count);
}

// Before CUDA 12 the kernel of a node was always a function, and its description ended before the fields for others.
OLDER_FORM(cuGraphAddKernelNode, CUgraphNode* node, CUgraph graph, const CUgraphNode* dependencies, size_t count,
           const CUDA_KERNEL_NODE_PARAMS_v1* params) {
  const CUDA_KERNEL_NODE_PARAMS kernel{.func = params->func,
                                       .gridDimX = params->gridDimX,
                                       .gridDimY = params->gridDimY,
                                       .gridDimZ = params->gridDimZ,
                                       .blockDimX = params->blockDimX,
                                       .blockDimY = params->blockDimY,
                                       .blockDimZ = params->blockDimZ,
                                       .sharedMemBytes = params->sharedMemBytes,
                                       .kernelParams = params->kernelParams,
                                       .extra = params->extra,
                                       .kern = nullptr,
                                       .ctx = nullptr};
  return cuGraphAddKernelNode(node, graph, dependencies, count, &kernel);
}

// Until CUDA 12 an instantiation told of its failure by a node and a text.
namespace {
CUresult instantiate(CUgraphExec* exec, CUgraph graph, CUgraphNode* failed, char* log, size_t log_bytes) {
  if (failed) *failed = nullptr;
  if (log && log_bytes > 0) *log = '\0';
  return cuGraphInstantiateWithFlags(exec, graph, 0);
}
}  // namespace
OLDER_FORM(cuGraphInstantiate, CUgraphExec* exec, CUgraph graph, CUgraphNode* failed, char* log, size_t log_bytes) {
  return instantiate(exec, graph, failed, log, log_bytes);
}
OLDER_FORM(cuGraphInstantiate_v2, CUgraphExec* exec, CUgraph graph, CUgraphNode* failed, char* log, size_t log_bytes) {
  return instantiate(exec, graph, failed, log, log_bytes);
}
OLDER_FORM(cuGraphExecUpdate, CUgraphExec exec, CUgraph graph, CUgraphNode* failed, CUgraphExecUpdateResult* result) {
  CUgraphExecUpdateResultInfo info{};
  const CUresult error = cuGraphExecUpdate(exec, graph, &info);
  if (failed) *failed = info.errorNode;
  if (result) *result = info.result;
  return error;
}

// ---- Programs with a default stream for each thread -----------------------------------------------------------------

// cuda.h makes a macro of the name without a suffix: by then, `function` has become the symbol.
#define PER_THREAD(function, suffix) CACHALOT_SIMULATOR_PER_THREAD(function, suffix)
#define OLDER_PER_THREAD(function, suffix)                                                             \
  extern "C" {                                                                                         \
  __attribute__((used)) static decltype(&(older_##function)) resolve_older_##function() {              \
    return &PerThread<&(older_##function)>::call;                                                      \
  }                                                                                                    \
  __attribute__((visibility("default"), ifunc("resolve_older_" #function))) decltype(older_##function) \
      older_##function##_##suffix __asm__(#function "_" #suffix);                                      \
  }

PER_THREAD(cuEventRecord, ptsz)
PER_THREAD(cuEventRecordWithFlags, ptsz)
PER_THREAD(cuGraphInstantiateWithParams, ptsz)
PER_THREAD(cuGraphLaunch, ptsz)
PER_THREAD(cuGraphUpload, ptsz)
PER_THREAD(cuLaunchCooperativeKernel, ptsz)
PER_THREAD(cuLaunchHostFunc, ptsz)
PER_THREAD(cuLaunchKernel, ptsz)
PER_THREAD(cuLaunchKernelEx, ptsz)
PER_THREAD(cuMemAllocAsync, ptsz)
PER_THREAD(cuMemAllocFromPoolAsync, ptsz)
PER_THREAD(cuMemFreeAsync, ptsz)
OLDER_PER_THREAD(cuMemPrefetchAsync, ptsz)
PER_THREAD(cuMemPrefetchAsync_v2, ptsz)
PER_THREAD(cuMemcpy, ptds)
PER_THREAD(cuMemcpy2D_v2, ptds)
PER_THREAD(cuMemcpy2DAsync_v2, ptsz)
PER_THREAD(cuMemcpy2DUnaligned_v2, ptds)
PER_THREAD(cuMemcpyAsync, ptsz)
OLDER_PER_THREAD(cuMemcpyBatchAsync, ptsz)
PER_THREAD(cuMemcpyBatchAsync_v2, ptsz)
PER_THREAD(cuMemcpyDtoD_v2, ptds)
PER_THREAD(cuMemcpyDtoDAsync_v2, ptsz)
PER_THREAD(cuMemcpyDtoH_v2, ptds)
PER_THREAD(cuMemcpyDtoHAsync_v2, ptsz)
PER_THREAD(cuMemcpyHtoD_v2, ptds)
PER_THREAD(cuMemcpyHtoDAsync_v2, ptsz)
PER_THREAD(cuMemcpyPeer, ptds)
PER_THREAD(cuMemcpyPeerAsync, ptsz)
PER_THREAD(cuMemsetD16_v2, ptds)
PER_THREAD(cuMemsetD16Async, ptsz)
PER_THREAD(cuMemsetD2D16_v2, ptds)
PER_THREAD(cuMemsetD2D16Async, ptsz)
PER_THREAD(cuMemsetD2D32_v2, ptds)
PER_THREAD(cuMemsetD2D32Async, ptsz)
PER_THREAD(cuMemsetD2D8_v2, ptds)
PER_THREAD(cuMemsetD2D8Async, ptsz)
PER_THREAD(cuMemsetD32_v2, ptds)
PER_THREAD(cuMemsetD32Async, ptsz)
PER_THREAD(cuMemsetD8_v2, ptds)
PER_THREAD(cuMemsetD8Async, ptsz)
PER_THREAD(cuStreamAddCallback, ptsz)
PER_THREAD(cuStreamAttachMemAsync, ptsz)
OLDER_PER_THREAD(cuStreamBeginCapture, ptsz)
PER_THREAD(cuStreamBeginCapture_v2, ptsz)
PER_THREAD(cuStreamBeginCaptureToGraph, ptsz)
PER_THREAD(cuStreamCopyAttributes, ptsz)
PER_THREAD(cuStreamEndCapture, ptsz)
PER_THREAD(cuStreamGetAttribute, ptsz)
OLDER_PER_THREAD(cuStreamGetCaptureInfo, ptsz)
OLDER_PER_THREAD(cuStreamGetCaptureInfo_v2, ptsz)
PER_THREAD(cuStreamGetCaptureInfo_v3, ptsz)
PER_THREAD(cuStreamGetCtx, ptsz)
PER_THREAD(cuStreamGetCtx_v2, ptsz)
PER_THREAD(cuStreamGetDevice, ptsz)
PER_THREAD(cuStreamGetFlags, ptsz)
PER_THREAD(cuStreamGetId, ptsz)
PER_THREAD(cuStreamGetPriority, ptsz)
PER_THREAD(cuStreamIsCapturing, ptsz)
PER_THREAD(cuStreamQuery, ptsz)
PER_THREAD(cuStreamSetAttribute, ptsz)
PER_THREAD(cuStreamSynchronize, ptsz)
OLDER_PER_THREAD(cuStreamUpdateCaptureDependencies, ptsz)
PER_THREAD(cuStreamUpdateCaptureDependencies_v2, ptsz)
PER_THREAD(cuStreamWaitEvent, ptsz)
OLDER_PER_THREAD(cuStreamWriteValue32, ptsz)
PER_THREAD(cuStreamWriteValue32_v2, ptsz)
OLDER_PER_THREAD(cuStreamWriteValue64, ptsz)
PER_THREAD(cuStreamWriteValue64_v2, ptsz)

#undef OLDER_PER_THREAD
#undef PER_THREAD
