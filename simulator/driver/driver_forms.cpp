// Older forms of the driver's functions: the symbols that programs of older versions of CUDA look up. cuda.h names the newest
// form of each without its suffix.
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
