#include "simulator/device_attributes.h"

#include <algorithm>
#include <climits>
#include <cstdio>
#include <cstring>

#include "base/bytes.h"
#include "device/address_space.h"
#include "device/cuda_codes.h"

namespace cachalot::simulator {
namespace {

// The same on every GPU of the table: "Technical Specifications per Compute Capability" of the CUDA C++ Programming Guide.
constexpr int kWarpThreads = 32;
constexpr int kThreadsPerBlock = 1024;
constexpr int kRegisters = 65536;  // of a multiprocessor, and the most for a block
constexpr std::size_t kSharedPerBlock = 48 * kKiB;
constexpr std::size_t kConstantBytes = 64 * kKiB;

int pci_bus(int ordinal) { return ordinal + 1; }
bool has_clusters(const GpuModel& gpu) { return gpu.major >= 9; }
std::size_t reserved_shared(const GpuModel& gpu) { return gpu.major >= 8 ? kKiB : 0; }

}  // namespace

std::string pci_bus_id(int ordinal) {
  char text[32];
  std::snprintf(text, sizeof text, "0000:%02X:00.0", static_cast<unsigned>(pci_bus(ordinal)));
  return text;
}

CUuuid device_uuid(int ordinal) {
  CUuuid uuid{};
  std::memcpy(uuid.bytes, "cachalot-sim-gpu", sizeof(uuid.bytes));
  uuid.bytes[15] = static_cast<char>(ordinal);
  return uuid;
}

int single_to_double_ratio(const GpuModel& gpu) { return gpu.minor == 0 ? 2 : 32; }

cudaDeviceProp device_properties(const Config& config, int ordinal) {
  const GpuModel& gpu = *config.gpu;
  cudaDeviceProp prop{};
  gpu.product.copy(prop.name, sizeof(prop.name) - 1);
  prop.uuid = device_uuid(ordinal);
  prop.totalGlobalMem = config.memory_bytes;
  prop.sharedMemPerBlock = kSharedPerBlock;
  prop.regsPerBlock = kRegisters;
  prop.warpSize = kWarpThreads;
  prop.memPitch = INT_MAX;
  prop.maxThreadsPerBlock = kThreadsPerBlock;
  std::copy_n(std::array{1024, 1024, 64}.begin(), 3, prop.maxThreadsDim);
  std::copy_n(std::array{INT_MAX, 65535, 65535}.begin(), 3, prop.maxGridSize);
  prop.totalConstMem = kConstantBytes;
  prop.major = gpu.major;
  prop.minor = gpu.minor;
  prop.textureAlignment = 512;
  prop.texturePitchAlignment = 32;
  prop.multiProcessorCount = gpu.multiprocessors;
  prop.integrated = gpu.integrated;
  prop.canMapHostMemory = 1;
  prop.surfaceAlignment = 512;
  prop.concurrentKernels = 1;
  prop.ECCEnabled = 1;
  prop.pciBusID = pci_bus(ordinal);
  prop.asyncEngineCount = 3;
  prop.unifiedAddressing = 1;
  prop.memoryBusWidth = gpu.memory_bus_bits;
  prop.l2CacheSize = static_cast<int>(gpu.l2_bytes);
  prop.persistingL2CacheMaxSize = gpu.major >= 8 ? static_cast<int>(gpu.l2_bytes / 4 * 3) : 0;
  prop.maxThreadsPerMultiProcessor = gpu.threads_per_multiprocessor;
  prop.streamPrioritiesSupported = 1;
  prop.globalL1CacheSupported = 1;
  prop.localL1CacheSupported = 1;
  prop.sharedMemPerMultiprocessor = gpu.shared_per_multiprocessor;
  prop.regsPerMultiprocessor = kRegisters;
  prop.managedMemory = 1;
  prop.concurrentManagedAccess = 1;
  prop.computePreemptionSupported = 1;
  prop.canUseHostPointerForRegisteredMem = 1;
  prop.cooperativeLaunch = 1;
  prop.sharedMemPerBlockOptin = gpu.shared_per_block_optin;
  prop.maxBlocksPerMultiProcessor = gpu.blocks_per_multiprocessor;
  prop.reservedSharedMemPerBlock = reserved_shared(gpu);
  prop.hostRegisterSupported = 1;
  prop.memoryPoolsSupported = 1;
  prop.ipcEventSupported = 1;
  prop.clusterLaunch = has_clusters(gpu);
  prop.unifiedFunctionPointers = 1;
  prop.hostNumaId = -1;
  prop.gpuPciDeviceID = static_cast<unsigned int>(gpu.pci_device_id) << 16 | 0x10de;
  return prop;
}

int device_attribute(const Config& config, int ordinal, int attribute) {
  if (attribute <= 0 || attribute >= CU_DEVICE_ATTRIBUTE_MAX)
    fail("cudaDeviceGetAttribute", CudaCode::invalid_value, "no such attribute");
  const GpuModel& gpu = *config.gpu;
  const cudaDeviceProp prop = device_properties(config, ordinal);
  switch (attribute) {
    case CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK:
      return prop.maxThreadsPerBlock;
    case CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X:
      return prop.maxThreadsDim[0];
    case CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Y:
      return prop.maxThreadsDim[1];
    case CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z:
      return prop.maxThreadsDim[2];
    case CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X:
      return prop.maxGridSize[0];
    case CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y:
      return prop.maxGridSize[1];
    case CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z:
      return prop.maxGridSize[2];
    case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK:
      return static_cast<int>(prop.sharedMemPerBlock);
    case CU_DEVICE_ATTRIBUTE_TOTAL_CONSTANT_MEMORY:
      return static_cast<int>(prop.totalConstMem);
    case CU_DEVICE_ATTRIBUTE_WARP_SIZE:
      return prop.warpSize;
    case CU_DEVICE_ATTRIBUTE_MAX_PITCH:
      return static_cast<int>(prop.memPitch);
    case CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_BLOCK:
      return prop.regsPerBlock;
    case CU_DEVICE_ATTRIBUTE_CLOCK_RATE:
      return gpu.clock_khz;
    case CU_DEVICE_ATTRIBUTE_TEXTURE_ALIGNMENT:
      return static_cast<int>(prop.textureAlignment);
    case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT:
      return prop.multiProcessorCount;
    case CU_DEVICE_ATTRIBUTE_INTEGRATED:
      return prop.integrated;
    case CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY:
      return prop.canMapHostMemory;
    case CU_DEVICE_ATTRIBUTE_SURFACE_ALIGNMENT:
      return static_cast<int>(prop.surfaceAlignment);
    case CU_DEVICE_ATTRIBUTE_CONCURRENT_KERNELS:
      return prop.concurrentKernels;
    case CU_DEVICE_ATTRIBUTE_ECC_ENABLED:
      return prop.ECCEnabled;
    case CU_DEVICE_ATTRIBUTE_PCI_BUS_ID:
      return prop.pciBusID;
    case CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID:
      return prop.pciDeviceID;
    case CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE:
      return gpu.memory_clock_khz;
    case CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH:
      return prop.memoryBusWidth;
    case CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE:
      return prop.l2CacheSize;
    case CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR:
      return prop.maxThreadsPerMultiProcessor;
    case CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT:
      return prop.asyncEngineCount;
    case CU_DEVICE_ATTRIBUTE_GPU_OVERLAP:
      return 1;
    case CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING:
      return prop.unifiedAddressing;
    case CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID:
      return prop.pciDomainID;
    case CU_DEVICE_ATTRIBUTE_TEXTURE_PITCH_ALIGNMENT:
      return static_cast<int>(prop.texturePitchAlignment);
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR:
      return prop.major;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR:
      return prop.minor;
    case CU_DEVICE_ATTRIBUTE_STREAM_PRIORITIES_SUPPORTED:
      return prop.streamPrioritiesSupported;
    case CU_DEVICE_ATTRIBUTE_GLOBAL_L1_CACHE_SUPPORTED:
      return prop.globalL1CacheSupported;
    case CU_DEVICE_ATTRIBUTE_LOCAL_L1_CACHE_SUPPORTED:
      return prop.localL1CacheSupported;
    case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR:
      return static_cast<int>(prop.sharedMemPerMultiprocessor);
    case CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR:
      return prop.regsPerMultiprocessor;
    case CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY:
      return prop.managedMemory;
    case CU_DEVICE_ATTRIBUTE_SINGLE_TO_DOUBLE_PRECISION_PERF_RATIO:
      return single_to_double_ratio(gpu);
    case CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS:
      return prop.concurrentManagedAccess;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_PREEMPTION_SUPPORTED:
      return prop.computePreemptionSupported;
    case CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM:
      return prop.canUseHostPointerForRegisteredMem;
    case CU_DEVICE_ATTRIBUTE_CAN_USE_STREAM_MEM_OPS_V1:
    case CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS_V1:
    case CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS:
      return 1;
    case CU_DEVICE_ATTRIBUTE_COOPERATIVE_LAUNCH:
      return prop.cooperativeLaunch;
    case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN:
      return static_cast<int>(prop.sharedMemPerBlockOptin);
    case CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED:
      return prop.hostRegisterSupported;
    case CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED:
      return 1;
    case CU_DEVICE_ATTRIBUTE_MAX_BLOCKS_PER_MULTIPROCESSOR:
      return prop.maxBlocksPerMultiProcessor;
    case CU_DEVICE_ATTRIBUTE_MAX_PERSISTING_L2_CACHE_SIZE:
      return prop.persistingL2CacheMaxSize;
    case CU_DEVICE_ATTRIBUTE_RESERVED_SHARED_MEMORY_PER_BLOCK:
      return static_cast<int>(prop.reservedSharedMemPerBlock);
    case CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED:
      return prop.memoryPoolsSupported;
    case CU_DEVICE_ATTRIBUTE_CLUSTER_LAUNCH:
      return prop.clusterLaunch;
    case CU_DEVICE_ATTRIBUTE_UNIFIED_FUNCTION_POINTERS:
      return prop.unifiedFunctionPointers;
    case CU_DEVICE_ATTRIBUTE_TENSOR_MAP_ACCESS_SUPPORTED:
      return has_clusters(gpu);
    case CU_DEVICE_ATTRIBUTE_IPC_EVENT_SUPPORTED:
      return prop.ipcEventSupported;
    case CU_DEVICE_ATTRIBUTE_NUMA_ID:
    case CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID:
      return -1;
    default:
      return 0;  // what it asks about is not there: arrays, textures, interoperation
  }
}

}  // namespace cachalot::simulator
