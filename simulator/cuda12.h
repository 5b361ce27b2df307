// The structs of CUDA 12's runtime that CUDA 13 changed, laid out as in driver_types.h of nvidia-cuda-runtime-cu12 12.1 to
// 12.9, which agree.
#pragma once

#include <cstddef>

#include "simulator/abi.h"

namespace cachalot::simulator {

inline constexpr int kCuda12Version = 12090;  // CUDART_VERSION of the last CUDA 12

// cudaPointerAttributes: CUDA 13 appended reserved fields, for which a program of CUDA 12 has no room.
struct PointerAttributes12 {
  cudaMemoryType type;
  int device;
  void* device_pointer;
  void* host_pointer;
};
static_assert(sizeof(PointerAttributes12) == 24);

// cudaDeviceProp: CUDA 13 removed the fields whose names stand behind an underscore here; the others have CUDA's names.
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

// What cudaGetDeviceProperties, without _v2, fills in: CUDA 11's struct, which is the beginning of CUDA 12's.
inline constexpr std::size_t kDeviceProp11Bytes = offsetof(DeviceProp12, hostRegisterSupported);
static_assert(kDeviceProp11Bytes == 728);

}  // namespace cachalot::simulator
