// Older forms of the driver's functions: the symbols that programs of older versions of CUDA look up. cuda.h names the newest
// form of each without its suffix.
#include "simulator/calls.h"

using namespace cachalot::simulator;

// cuda.h makes macros of these names: another name in C++, the same symbol.
#define OLDER_FORM(name, ...)                                                                          \
  extern "C" __attribute__((visibility("default"))) CUresult older_##name(__VA_ARGS__) __asm__(#name); \
  CUresult older_##name(__VA_ARGS__)

// ---- Devices, contexts, streams and events --------------------------------------------------------------------------

OLDER_FORM(cuGetProcAddress, const char* name, void** function, int version, cuuint64_t flags) {
  return cuGetProcAddress(name, function, version, flags, nullptr);
}
OLDER_FORM(cuDeviceGetUuid, CUuuid* uuid, CUdevice device) { return cuDeviceGetUuid(uuid, device); }
OLDER_FORM(cuDevicePrimaryCtxRelease, CUdevice device) { return cuDevicePrimaryCtxRelease(device); }
OLDER_FORM(cuDevicePrimaryCtxReset, CUdevice device) { return cuDevicePrimaryCtxReset(device); }
OLDER_FORM(cuDevicePrimaryCtxSetFlags, CUdevice device, unsigned int flags) {
  return cuDevicePrimaryCtxSetFlags(device, flags);
}
OLDER_FORM(cuCtxCreate, CUcontext* context, unsigned int flags, CUdevice device) {
  return cuCtxCreate(context, nullptr, flags, device);
}
OLDER_FORM(cuCtxCreate_v2, CUcontext* context, unsigned int flags, CUdevice device) {
  return cuCtxCreate(context, nullptr, flags, device);
}
OLDER_FORM(cuCtxCreate_v3, CUcontext* context, CUexecAffinityParam*, int, unsigned int flags, CUdevice device) {
  return cuCtxCreate(context, nullptr, flags, device);
}
OLDER_FORM(cuCtxDestroy, CUcontext context) { return cuCtxDestroy(context); }
OLDER_FORM(cuCtxPushCurrent, CUcontext context) { return cuCtxPushCurrent(context); }
OLDER_FORM(cuCtxPopCurrent, CUcontext* context) { return cuCtxPopCurrent(context); }
OLDER_FORM(cuStreamDestroy, CUstream stream) { return cuStreamDestroy(stream); }
OLDER_FORM(cuEventDestroy, CUevent event) { return cuEventDestroy(event); }
OLDER_FORM(cuEventElapsedTime, float* ms, CUevent start, CUevent end) { return cuEventElapsedTime(ms, start, end); }
OLDER_FORM(cuStreamWriteValue32, CUstream stream, CUdeviceptr address, cuuint32_t value, unsigned int flags) {
  return cuStreamWriteValue32(stream, address, value, flags);
}
OLDER_FORM(cuStreamWriteValue64, CUstream stream, CUdeviceptr address, cuuint64_t value, unsigned int flags) {
  return cuStreamWriteValue64(stream, address, value, flags);
}

// ---- Memory and code ------------------------------------------------------------------------------------------------

OLDER_FORM(cuMemHostRegister, void* host, size_t bytes, unsigned int flags) {
  return cuMemHostRegister(host, bytes, flags);
}
OLDER_FORM(cuIpcOpenMemHandle, CUdeviceptr* address, CUipcMemHandle handle, unsigned int flags) {
  return cuIpcOpenMemHandle(address, handle, flags);
}
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
OLDER_FORM(cuLinkCreate, unsigned int count, CUjit_option* options, void** values, CUlinkState* state) {
  return cuLinkCreate(count, options, values, state);
}
OLDER_FORM(cuLinkAddData, CUlinkState state, CUjitInputType type, void* data, size_t bytes, const char* name,
           unsigned int count, CUjit_option* options, void** values) {
  return cuLinkAddData(state, type, data, bytes, name, count, options, values);
}
OLDER_FORM(cuLinkAddFile, CUlinkState state, CUjitInputType type, const char* path, unsigned int count,
           CUjit_option* options, void** values) {
  return cuLinkAddFile(state, type, path, count, options, values);
}

// ---- Captures and graphs --------------------------------------------------------------------------------------------

OLDER_FORM(cuStreamBeginCapture, CUstream stream) {
  return cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL);
}
OLDER_FORM(cuStreamGetCaptureInfo, CUstream stream, CUstreamCaptureStatus* status, cuuint64_t* id) {
  return cuStreamGetCaptureInfo(stream, status, id, nullptr, nullptr, nullptr, nullptr);
}
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
