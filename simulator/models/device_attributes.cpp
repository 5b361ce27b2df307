#include "simulator/models/device_attributes.h"

#include <algorithm>
#include <climits>
#include <cstdio>
#include <cstring>
#include <iterator>
#include <utility>

#include "base/bytes.h"
#include "device/cuda_codes.h"
#include "simulator/device/address_space.h"

namespace cachalot::simulator {
namespace {

// Constants of every GPU of the table: "Technical Specifications per Compute Capability" of the CUDA C++ Programming
// Guide.
constexpr int kWarpThreads = 32;
constexpr int kThreadsPerBlock = 1024;
constexpr int kRegisters = 65536;  // of a multiprocessor, and the most for a block
constexpr std::size_t kSharedPerBlock = 48 * kKiB;
constexpr std::size_t kConstantBytes = 64 * kKiB;

bool has_clusters(const GpuModel& gpu) { return gpu.major >= 9; }
std::size_t reserved_shared(const GpuModel& gpu) { return gpu.major >= 8 ? kKiB : 0; }

}  // namespace

int pci_bus(int machine_number) { return machine_number + 1; }

std::string pci_bus_id(int machine_number) {
  char text[32];
  std::snprintf(text, sizeof text, "0000:%02X:00.0", static_cast<unsigned>(pci_bus(machine_number)));
  return text;
}

CUuuid device_uuid(int machine_number) {
  CUuuid uuid{};
  std::memcpy(uuid.bytes, "cachalot-sim-gpu", sizeof(uuid.bytes));
  uuid.bytes[15] = static_cast<char>(machine_number);
  return uuid;
}

std::string uuid_text(int machine_number) {
  const CUuuid uuid = device_uuid(machine_number);
  std::string text = "GPU-";
  for (int i = 0; i < 16; ++i) {
    char digits[3];
    std::snprintf(digits, sizeof(digits), "%02x", static_cast<unsigned char>(uuid.bytes[i]));
    text += (i == 4 || i == 6 || i == 8 || i == 10) ? std::string("-") + digits : digits;
  }
  return text;
}

int single_to_double_ratio(const GpuModel& gpu) { return gpu.minor == 0 ? 2 : 32; }

cudaDeviceProp device_properties(const Config& config, int ordinal) {
  const GpuModel& gpu = *config.gpu;
  cudaDeviceProp prop{};
  gpu.product.copy(prop.name, sizeof(prop.name) - 1);
  prop.uuid = device_uuid(config.machine_number(ordinal));
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
  prop.pciBusID = pci_bus(config.machine_number(ordinal));
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
  const std::pair<int, int> values[] = {
      {CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK, prop.maxThreadsPerBlock},
      {CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X, prop.maxThreadsDim[0]},
      {CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Y, prop.maxThreadsDim[1]},
      {CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z, prop.maxThreadsDim[2]},
      {CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X, prop.maxGridSize[0]},
      {CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y, prop.maxGridSize[1]},
      {CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z, prop.maxGridSize[2]},
      {CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK, static_cast<int>(prop.sharedMemPerBlock)},
      {CU_DEVICE_ATTRIBUTE_TOTAL_CONSTANT_MEMORY, static_cast<int>(prop.totalConstMem)},
      {CU_DEVICE_ATTRIBUTE_WARP_SIZE, prop.warpSize},
      {CU_DEVICE_ATTRIBUTE_MAX_PITCH, static_cast<int>(prop.memPitch)},
      {CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_BLOCK, prop.regsPerBlock},
      {CU_DEVICE_ATTRIBUTE_CLOCK_RATE, gpu.clock_khz},
      {CU_DEVICE_ATTRIBUTE_TEXTURE_ALIGNMENT, static_cast<int>(prop.textureAlignment)},
      {CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, prop.multiProcessorCount},
      {CU_DEVICE_ATTRIBUTE_INTEGRATED, prop.integrated},
      {CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY, prop.canMapHostMemory},
      {CU_DEVICE_ATTRIBUTE_SURFACE_ALIGNMENT, static_cast<int>(prop.surfaceAlignment)},
      {CU_DEVICE_ATTRIBUTE_CONCURRENT_KERNELS, prop.concurrentKernels},
      {CU_DEVICE_ATTRIBUTE_ECC_ENABLED, prop.ECCEnabled},
      {CU_DEVICE_ATTRIBUTE_PCI_BUS_ID, prop.pciBusID},
      {CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID, prop.pciDeviceID},
      {CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE, gpu.memory_clock_khz},
      {CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH, prop.memoryBusWidth},
      {CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE, prop.l2CacheSize},
      {CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR, prop.maxThreadsPerMultiProcessor},
      {CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT, prop.asyncEngineCount},
      {CU_DEVICE_ATTRIBUTE_GPU_OVERLAP, 1},
      {CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING, prop.unifiedAddressing},
      {CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID, prop.pciDomainID},
      {CU_DEVICE_ATTRIBUTE_TEXTURE_PITCH_ALIGNMENT, static_cast<int>(prop.texturePitchAlignment)},
      {CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, prop.major},
      {CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, prop.minor},
      {CU_DEVICE_ATTRIBUTE_STREAM_PRIORITIES_SUPPORTED, prop.streamPrioritiesSupported},
      {CU_DEVICE_ATTRIBUTE_GLOBAL_L1_CACHE_SUPPORTED, prop.globalL1CacheSupported},
      {CU_DEVICE_ATTRIBUTE_LOCAL_L1_CACHE_SUPPORTED, prop.localL1CacheSupported},
      {CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR, static_cast<int>(prop.sharedMemPerMultiprocessor)},
      {CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR, prop.regsPerMultiprocessor},
      {CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY, prop.managedMemory},
      {CU_DEVICE_ATTRIBUTE_SINGLE_TO_DOUBLE_PRECISION_PERF_RATIO, single_to_double_ratio(gpu)},
      {CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS, prop.concurrentManagedAccess},
      {CU_DEVICE_ATTRIBUTE_COMPUTE_PREEMPTION_SUPPORTED, prop.computePreemptionSupported},
      {CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM, prop.canUseHostPointerForRegisteredMem},
      {CU_DEVICE_ATTRIBUTE_CAN_USE_STREAM_MEM_OPS_V1, 1},
      {CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS_V1, 1},
      {CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS, 1},
      {CU_DEVICE_ATTRIBUTE_COOPERATIVE_LAUNCH, prop.cooperativeLaunch},
      {CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN, static_cast<int>(prop.sharedMemPerBlockOptin)},
      {CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED, prop.hostRegisterSupported},
      {CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, 1},
      {CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED, 1},
      {CU_DEVICE_ATTRIBUTE_MAX_BLOCKS_PER_MULTIPROCESSOR, prop.maxBlocksPerMultiProcessor},
      {CU_DEVICE_ATTRIBUTE_MAX_PERSISTING_L2_CACHE_SIZE, prop.persistingL2CacheMaxSize},
      {CU_DEVICE_ATTRIBUTE_RESERVED_SHARED_MEMORY_PER_BLOCK, static_cast<int>(prop.reservedSharedMemPerBlock)},
      {CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED, prop.memoryPoolsSupported},
      {CU_DEVICE_ATTRIBUTE_CLUSTER_LAUNCH, prop.clusterLaunch},
      {CU_DEVICE_ATTRIBUTE_UNIFIED_FUNCTION_POINTERS, prop.unifiedFunctionPointers},
      {CU_DEVICE_ATTRIBUTE_TENSOR_MAP_ACCESS_SUPPORTED, has_clusters(gpu)},
      {CU_DEVICE_ATTRIBUTE_IPC_EVENT_SUPPORTED, prop.ipcEventSupported},
      {CU_DEVICE_ATTRIBUTE_NUMA_ID, -1},
      {CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID, -1},
  };
  const auto found = std::ranges::find(values, attribute, &std::pair<int, int>::first);
  return found == std::end(values) ? 0
                                   : found->second;  // without a value: arrays, textures, interoperation are not there
}

}  // namespace cachalot::simulator
