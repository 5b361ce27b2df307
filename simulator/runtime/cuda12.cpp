// CUDA 12's runtime, where it is not CUDA 13's, which is all the rest of this library.
//
// Functions that CUDA 12 alone has are defined here under their names. Where both have a name but mean different things by
// it, the dynamic linker decides for each program and library: a binary linked with libcudart.so.12 asks for the version
// "libcudart.so.12" of a symbol and gets what CUDA12 defines here, and one linked with libcudart.so.13 asks for
// "libcudart.so.13" and gets the others (exports.map). A program that looks names up by a handle gets CUDA 12's through
// cudart/libcudart.so.12, where redirection.cpp leads it.
//
// Link-time optimization would lose .symver.
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "simulator/base/redirection.h"
#include "simulator/base/report.h"
#include "simulator/models/cuda_abi.h"
#include "simulator/models/device_attributes.h"
#include "simulator/state/calls.h"

namespace cachalot::simulator {

// The structs of CUDA 12's runtime that CUDA 13 changed, laid out as in driver_types.h of nvidia-cuda-runtime-cu12 12.1 to
// 12.9, which agree.

inline constexpr int kCuda12Version = 12090;  // CUDART_VERSION of the last CUDA 12

// cudaPointerAttributes: CUDA 13 appended reserved fields, for which a program of CUDA 12 has no room.
struct PointerAttributes12 {
  cudaMemoryType type;
  int device;
  void* device_pointer;
  void* host_pointer;
};
static_assert(sizeof(PointerAttributes12) == 24);

// cudaDeviceProp: CUDA 13 removed the fields whose names begin with an underscore here; the others have CUDA's names.
struct DeviceProp12 {
  char name[256];
  CUuuid uuid;
  char luid[8];
  unsigned int luidDeviceNodeMask;
  size_t totalGlobalMem;
  size_t sharedMemPerBlock;
  int regsPerBlock;
  int warpSize;
  size_t memPitch;
  int maxThreadsPerBlock;
  int maxThreadsDim[3];
  int maxGridSize[3];
  int _clockRate;
  size_t totalConstMem;
  int major;
  int minor;
  size_t textureAlignment;
  size_t texturePitchAlignment;
  int _deviceOverlap;
  int multiProcessorCount;
  int _kernelExecTimeoutEnabled;
  int integrated;
  int canMapHostMemory;
  int _computeMode;
  int maxTexture1D;
  int maxTexture1DMipmap;
  int _maxTexture1DLinear;
  int maxTexture2D[2];
  int maxTexture2DMipmap[2];
  int maxTexture2DLinear[3];
  int maxTexture2DGather[2];
  int maxTexture3D[3];
  int maxTexture3DAlt[3];
  int maxTextureCubemap;
  int maxTexture1DLayered[2];
  int maxTexture2DLayered[3];
  int maxTextureCubemapLayered[2];
  int maxSurface1D;
  int maxSurface2D[2];
  int maxSurface3D[3];
  int maxSurface1DLayered[2];
  int maxSurface2DLayered[3];
  int maxSurfaceCubemap;
  int maxSurfaceCubemapLayered[2];
  size_t surfaceAlignment;
  int concurrentKernels;
  int ECCEnabled;
  int pciBusID;
  int pciDeviceID;
  int pciDomainID;
  int tccDriver;
  int asyncEngineCount;
  int unifiedAddressing;
  int _memoryClockRate;
  int memoryBusWidth;
  int l2CacheSize;
  int persistingL2CacheMaxSize;
  int maxThreadsPerMultiProcessor;
  int streamPrioritiesSupported;
  int globalL1CacheSupported;
  int localL1CacheSupported;
  size_t sharedMemPerMultiprocessor;
  int regsPerMultiprocessor;
  int managedMemory;
  int isMultiGpuBoard;
  int multiGpuBoardGroupID;
  int hostNativeAtomicSupported;
  int _singleToDoublePrecisionPerfRatio;
  int pageableMemoryAccess;
  int concurrentManagedAccess;
  int computePreemptionSupported;
  int canUseHostPointerForRegisteredMem;
  int cooperativeLaunch;
  int _cooperativeMultiDeviceLaunch;
  size_t sharedMemPerBlockOptin;
  int pageableMemoryAccessUsesHostPageTables;
  int directManagedMemAccessFromHost;
  int maxBlocksPerMultiProcessor;
  int accessPolicyMaxWindowSize;
  size_t reservedSharedMemPerBlock;
  int hostRegisterSupported;  // from here on not in CUDA 11's
  int sparseCudaArraySupported;
  int hostRegisterReadOnlySupported;
  int timelineSemaphoreInteropSupported;
  int memoryPoolsSupported;
  int gpuDirectRDMASupported;
  unsigned int gpuDirectRDMAFlushWritesOptions;
  int gpuDirectRDMAWritesOrdering;
  unsigned int memoryPoolSupportedHandleTypes;
  int deferredMappingCudaArraySupported;
  int ipcEventSupported;
  int clusterLaunch;
  int unifiedFunctionPointers;
  int reserved[63];
};
static_assert(sizeof(DeviceProp12) == 1032);
static_assert(offsetof(DeviceProp12, surfaceAlignment) == 568);
static_assert(offsetof(DeviceProp12, unifiedFunctionPointers) == 776);

// The bytes that cudaGetDeviceProperties, without _v2, fills in: CUDA 11's struct, which is the beginning of CUDA 12's.
inline constexpr std::size_t kDeviceProp11Bytes = offsetof(DeviceProp12, hostRegisterSupported);
static_assert(kDeviceProp11Bytes == 728);

}  // namespace cachalot::simulator

using namespace cachalot::simulator;

// The function `name` of CUDA 12, also exported as cudart12_`name`.
#define CUDA12(name, ...)                                             \
  CACHALOT_SIMULATOR_EXPORT cudaError_t cudart12_##name(__VA_ARGS__); \
  __asm__(".symver cudart12_" #name ", " #name "@libcudart.so.12");   \
  CACHALOT_SIMULATOR_EXPORT cudaError_t cudart12_##name(__VA_ARGS__)

#define CUDA12_PER_THREAD(name, suffix)                  \
  CACHALOT_SIMULATOR_PER_THREAD(cudart12_##name, suffix) \
  __asm__(".symver cudart12_" #name "_" #suffix ", " #name "_" #suffix "@libcudart.so.12");

#define CUDA12_ONLY(name, ...) CACHALOT_SIMULATOR_EXPORT cudaError_t name(__VA_ARGS__)

// Forwards to `function`, which has `count` parameters.
#define CUDA12_NAME(count, name, function) \
  CUDA12_ONLY(name, CACHALOT_PARAMETERS_##count(function)) { return function(CACHALOT_ARGUMENTS_##count(function)); }

namespace {

template <typename Field>
void copy(Field& to, const Field& from) {
  std::memcpy(&to, &from, sizeof(Field));
}

DeviceProp12 device_properties_12(const cudaDeviceProp& prop, const GpuModel& gpu) {
  DeviceProp12 prop12{};
#define FIELD(name) copy(prop12.name, prop.name);
#include "simulator/runtime/device_prop_fields.inc"
#undef FIELD
  prop12._clockRate = gpu.clock_khz;
  prop12._deviceOverlap = 1;
  prop12._memoryClockRate = gpu.memory_clock_khz;
  prop12._singleToDoublePrecisionPerfRatio = single_to_double_ratio(gpu);
  return prop12;
}

cudaError_t give_device_properties(void* prop, std::size_t bytes, int device) {
  return runtime_call([&](Process& process) {
    const cudaDeviceProp all = device_properties(process.config(), process.devices().at(device).ordinal);
    const DeviceProp12 prop12 = device_properties_12(all, *process.config().gpu);
    std::memcpy(prop, &prop12, bytes);
  });
}

}  // namespace

// ---- Devices and versions -------------------------------------------------------------------------------------------

CUDA12(cudaRuntimeGetVersion, int* version) {
  *version = kCuda12Version;
  return cudaSuccess;
}

CUDA12(cudaGetDeviceProperties, void* prop, int device) {
  return give_device_properties(prop, kDeviceProp11Bytes, device);
}
CUDA12_ONLY(cudaGetDeviceProperties_v2, DeviceProp12* prop, int device) {
  return give_device_properties(prop, sizeof(*prop), device);
}

CUDA12(cudaGetDriverEntryPoint, const char* name, void** function, unsigned long long flags,
       cudaDriverEntryPointQueryResult* result) {
  return driver_entry_point(name, function, kCuda12Version, flags, result);
}
CUDA12_PER_THREAD(cudaGetDriverEntryPoint, ptsz)

// Functions of before devices had contexts; cudaSetDoubleForDevice and …ForHost never did anything on GPUs with doubles.
CUDA12_ONLY(cudaThreadExit) { return cudaDeviceReset(); }
CUDA12_ONLY(cudaThreadSynchronize) { return cudaDeviceSynchronize(); }
CUDA12_NAME(2, cudaThreadGetLimit, cudaDeviceGetLimit)
CUDA12_NAME(2, cudaThreadSetLimit, cudaDeviceSetLimit)
CUDA12_NAME(1, cudaThreadGetCacheConfig, cudaDeviceGetCacheConfig)
CUDA12_NAME(1, cudaThreadSetCacheConfig, cudaDeviceSetCacheConfig)
CUDA12_ONLY(cudaSetDoubleForDevice, double*) { return cudaSuccess; }
CUDA12_ONLY(cudaSetDoubleForHost, double*) { return cudaSuccess; }

// ---- Memory ---------------------------------------------------------------------------------------------------------

CUDA12(cudaPointerGetAttributes, PointerAttributes12* attributes, const void* pointer) {
  cudaPointerAttributes all{};
  const cudaError_t error = cudaPointerGetAttributes(&all, pointer);
  if (error == cudaSuccess) *attributes = {all.type, all.device, all.devicePointer, all.hostPointer};
  return error;
}

CUDA12(cudaMemAdvise, const void* start, size_t bytes, cudaMemoryAdvise advice, int) {
  return cudaMemAdvise(start, bytes, advice, {});
}
CUDA12_NAME(4, cudaMemAdvise_v2, cudaMemAdvise)

CUDA12(cudaMemPrefetchAsync, const void* start, size_t bytes, int, cudaStream_t stream) {
  return cudaMemPrefetchAsync(start, bytes, {}, 0, stream);
}
CUDA12_PER_THREAD(cudaMemPrefetchAsync, ptsz)
CUDA12_NAME(5, cudaMemPrefetchAsync_v2, cudaMemPrefetchAsync)
CACHALOT_SIMULATOR_PER_THREAD(cudaMemPrefetchAsync_v2, ptsz)

// CUDA 12 gives SIZE_MAX as the index of the failed copy if no single copy is at fault.
CUDA12(cudaMemcpyBatchAsync, void** to, void** from, size_t* sizes, size_t count, cudaMemcpyAttributes* attributes,
       size_t* first_copies, size_t attributes_count, size_t* failed, cudaStream_t stream) {
  const cudaError_t error =
      cudaMemcpyBatchAsync(to, from, sizes, count, attributes, first_copies, attributes_count, stream);
  if (error != cudaSuccess && failed) *failed = SIZE_MAX;
  return error;
}
CUDA12_PER_THREAD(cudaMemcpyBatchAsync, ptsz)

// ---- Events, captures and graphs ------------------------------------------------------------------------------------

CUDA12_NAME(3, cudaEventElapsedTime_v2, cudaEventElapsedTime)

CUDA12(cudaStreamGetCaptureInfo, cudaStream_t stream, cudaStreamCaptureStatus* status, unsigned long long* id) {
  return cudaStreamGetCaptureInfo(stream, status, id, nullptr, nullptr, nullptr, nullptr);
}
CUDA12_PER_THREAD(cudaStreamGetCaptureInfo, ptsz)
CUDA12_ONLY(cudaStreamGetCaptureInfo_v2, cudaStream_t stream, cudaStreamCaptureStatus* status, unsigned long long* id,
            cudaGraph_t* graph, const cudaGraphNode_t** dependencies, size_t* count) {
  return cudaStreamGetCaptureInfo(stream, status, id, graph, dependencies, nullptr, count);
}
CACHALOT_SIMULATOR_PER_THREAD(cudaStreamGetCaptureInfo_v2, ptsz)
CUDA12_NAME(7, cudaStreamGetCaptureInfo_v3, cudaStreamGetCaptureInfo)
CACHALOT_SIMULATOR_PER_THREAD(cudaStreamGetCaptureInfo_v3, ptsz)

CUDA12(cudaStreamUpdateCaptureDependencies, cudaStream_t stream, cudaGraphNode_t* dependencies, size_t count,
       unsigned int flags) {
  return cudaStreamUpdateCaptureDependencies(stream, dependencies, nullptr, count, flags);
}
CUDA12_PER_THREAD(cudaStreamUpdateCaptureDependencies, ptsz)
CUDA12_NAME(5, cudaStreamUpdateCaptureDependencies_v2, cudaStreamUpdateCaptureDependencies)
CACHALOT_SIMULATOR_PER_THREAD(cudaStreamUpdateCaptureDependencies_v2, ptsz)

CUDA12(cudaGraphAddDependencies, cudaGraph_t graph, const cudaGraphNode_t* from, const cudaGraphNode_t* to,
       size_t count) {
  return cudaGraphAddDependencies(graph, from, to, nullptr, count);
}
CUDA12_NAME(5, cudaGraphAddDependencies_v2, cudaGraphAddDependencies)

CUDA12(cudaGraphRemoveDependencies, cudaGraph_t graph, const cudaGraphNode_t* from, const cudaGraphNode_t* to,
       size_t count) {
  return cudaGraphRemoveDependencies(graph, from, to, nullptr, count);
}
CUDA12_NAME(5, cudaGraphRemoveDependencies_v2, cudaGraphRemoveDependencies)

CUDA12(cudaGraphGetEdges, cudaGraph_t graph, cudaGraphNode_t* from, cudaGraphNode_t* to, size_t* count) {
  return cudaGraphGetEdges(graph, from, to, nullptr, count);
}
CUDA12_NAME(5, cudaGraphGetEdges_v2, cudaGraphGetEdges)

CUDA12(cudaGraphNodeGetDependencies, cudaGraphNode_t node, cudaGraphNode_t* dependencies, size_t* count) {
  return cudaGraphNodeGetDependencies(node, dependencies, nullptr, count);
}
CUDA12_NAME(4, cudaGraphNodeGetDependencies_v2, cudaGraphNodeGetDependencies)

CUDA12(cudaGraphNodeGetDependentNodes, cudaGraphNode_t node, cudaGraphNode_t* dependents, size_t* count) {
  return cudaGraphNodeGetDependentNodes(node, dependents, nullptr, count);
}
CUDA12_NAME(4, cudaGraphNodeGetDependentNodes_v2, cudaGraphNodeGetDependentNodes)
