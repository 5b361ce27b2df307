#include "simulator/libraries/cudnn_planner.h"

#include <dlfcn.h>

#include <array>
#include <atomic>
#include <string_view>
#include <utility>

#include "base/format.h"
#include "base/json_writer.h"
#include "simulator/base/redirection.h"
#include "simulator/base/report.h"
#include "simulator/models/device_attributes.h"
#include "simulator/state/simulated_process.h"

namespace cachalot::simulator {
namespace {

// Finds a function of the library by its handle: a plain look-up would find the functions of this library.
template <typename Function>
bool find(void* library, const char* name, Function*& function) {
  function = reinterpret_cast<Function*>(real_dlsym(library, name));
  return function != nullptr;
}

// Empty: the program has not loaded cuDNN, or not one with these functions (8.0 and later have them).
CudnnFunctions find_functions() {
  CudnnFunctions found;
  void* const library = real_dlopen("libcudnn.so.9", RTLD_LAZY | RTLD_NOLOAD);
  if (library == nullptr) return {};
  const bool has_all =
      find(library, "cudnnBackendCreateDescriptor", found.create) &&
      find(library, "cudnnBackendDestroyDescriptor", found.destroy) &&
      find(library, "cudnnBackendSetAttribute", found.set) && find(library, "cudnnBackendGetAttribute", found.get) &&
      find(library, "cudnnBackendFinalize", found.finalize) && find(library, "cudnnGetVersion", found.version) &&
      find(library, "cudnnGetLastErrorString", found.last_error);
  return has_all ? found : CudnnFunctions{};
}

// Null as long as the program has loaded no cuDNN.
const CudnnFunctions* functions() {
  static std::atomic<const CudnnFunctions*> known{nullptr};
  if (const CudnnFunctions* found = known.load(std::memory_order_acquire)) return found;
  const CudnnFunctions found = find_functions();
  if (found.create == nullptr) return nullptr;
  const CudnnFunctions* none = nullptr;
  auto* const kept = new CudnnFunctions(found);
  if (known.compare_exchange_strong(none, kept, std::memory_order_acq_rel)) return kept;
  delete kept;
  return none;
}

std::string last_error(const CudnnFunctions& cudnn) {
  char text[512] = {};
  cudnn.last_error(text, sizeof(text) - 1);
  return text;
}

// The descriptor of a device's properties; null, and a line on standard error, if cuDNN refuses them.
void* make_device(const CudnnFunctions& cudnn, const std::string& properties) {
  void* device = nullptr;
  int status = cudnn.create(cudnn::kDevice, &device);
  if (status == cudnn::kSuccess) {
    status = cudnn.set(device, cudnn::kDeviceProperties, cudnn::kChar, static_cast<std::int64_t>(properties.size()),
                       properties.data());
  }
  if (status == cudnn::kSuccess) status = cudnn.finalize(device);
  if (status == cudnn::kSuccess) return device;
  note_once(formatted("cuDNN {} does not plan for this GPU, so that its workspaces are missing: status {}, {}",
                      cudnn.version(), status, last_error(cudnn)));
  return nullptr;
}

struct Use {
  std::atomic<std::uint64_t> executions{0};
  std::atomic<std::uint64_t> unplanned{0};
  std::atomic<std::size_t> version{0};  // asked for early: when the report is written, the library may be gone
  std::atomic<std::int64_t> largest_workspace_bytes{0};
};

Use& use() {
  static Use counted;
  return counted;
}

}  // namespace

const CudnnPlanner* CudnnPlanner::make() {
  const CudnnFunctions* const cudnn = functions();
  use().version = cudnn_version();
  if (cudnn == nullptr) {
    note_once("the program's cuDNN is not libcudnn.so.9: its workspaces are missing");
    return nullptr;
  }
  constexpr std::size_t kFirstWithoutGpu = 90800;
  if (cudnn->version() < kFirstWithoutGpu) {
    note_once(formatted("cuDNN {} plans only on a GPU (90800 and later do without): its workspaces are missing",
                        cudnn->version()));
    return nullptr;
  }
  cudaError_t error = cudaSuccess;
  const Process* const process = Process::get(error);
  if (process == nullptr) return nullptr;
  void* const device = make_device(*cudnn, cudnn_device_properties(process->config()));
  return device == nullptr ? nullptr : new CudnnPlanner(*cudnn, device);
}

const CudnnPlanner* CudnnPlanner::get() {
  static const CudnnPlanner* const planner = make();
  return planner;
}

int CudnnPlanner::create(int type, void** descriptor) const {
  const int status = cudnn_.create(type, descriptor);
  if (status != cudnn::kSuccess) return status;
  int name = 0;
  if (type == cudnn::kEngine) name = cudnn::kDeviceOfEngine;
  if (type == cudnn::kHeuristics) name = cudnn::kDeviceOfHeuristics;
  if (type == cudnn::kPlan) name = cudnn::kDeviceOfPlan;
  return name == 0 ? status : cudnn_.set(*descriptor, name, cudnn::kDescriptor, 1, &device_);
}

std::size_t cudnn_version() {
  const CudnnFunctions* const cudnn = functions();
  return cudnn == nullptr ? kCudnnVersion : cudnn->version();
}

std::string cudnn_device_properties(const Config& config) {
  constexpr int kDevice = 0;  // all devices are of one model
  const auto attribute = [&](int number) { return device_attribute(config, kDevice, number); };
  JsonWriter json;
  json.begin_object();
  json.key("maxGridSize")
      .list(std::array{attribute(CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X), attribute(CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y),
                       attribute(CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z)});
  json.key("maxBlockSize")
      .list(std::array{attribute(CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X), attribute(CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Y),
                       attribute(CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z)});
  // The attribute of each is the one that cuDNN asks a device for.
  constexpr std::pair<std::string_view, int> kAttributes[] = {
      {"regsPerBlock", CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_BLOCK},
      {"multiProcessorCount", CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT},
      {"warpSize", CU_DEVICE_ATTRIBUTE_WARP_SIZE},
      {"maxSharedMemoryPerBlock", CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK},
      {"maxSharedMemoryPerBlockOptin", CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN},
      {"reservedSharedMemoryPerBlock", CU_DEVICE_ATTRIBUTE_RESERVED_SHARED_MEMORY_PER_BLOCK},
      {"maxRegistersPerSM", CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR},
      {"maxCtasPerSM", CU_DEVICE_ATTRIBUTE_MAX_BLOCKS_PER_MULTIPROCESSOR},
      {"maxThreadsPerBlock", CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK},
      {"maxThreadsPerSM", CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR},
      {"pciDeviceId", CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID},
      {"isTccDriver", CU_DEVICE_ATTRIBUTE_TCC_DRIVER},
      {"supportCoopLaunch", CU_DEVICE_ATTRIBUTE_COOPERATIVE_LAUNCH},
      {"smClockRateKHz", CU_DEVICE_ATTRIBUTE_CLOCK_RATE},
      {"memClockRateKHz", CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE},
      {"l2CacheSize", CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE},
  };
  for (const auto& [name, number] : kAttributes) json.member(name, attribute(number));
  const cudaDeviceProp properties = device_properties(config, kDevice);
  return json.member("totalGlobalMem", properties.totalGlobalMem)
      .member("cudaDeviceId", kDevice)
      .member("deviceVer", properties.major * 100 + properties.minor * 10)
      .member("driverVer", kRuntimeVersion)
      .member("deviceName", std::string_view(properties.name))
      .end_object()
      .take();
}

void note_cudnn_execution(const std::int64_t* workspace_bytes) {
  use().executions.fetch_add(1, std::memory_order_relaxed);
  if (workspace_bytes == nullptr) {
    use().unplanned.fetch_add(1, std::memory_order_relaxed);
    return;
  }
  auto& largest = use().largest_workspace_bytes;
  std::int64_t known = largest.load(std::memory_order_relaxed);
  while (known < *workspace_bytes && !largest.compare_exchange_weak(known, *workspace_bytes, std::memory_order_relaxed))
    continue;
}

void write_cudnn_use(JsonWriter& json) {
  const std::uint64_t executions = use().executions.load(std::memory_order_relaxed);
  if (executions == 0) {
    json.value(nullptr);
    return;
  }
  json.begin_object().member("version", use().version.load(std::memory_order_relaxed)).member("executions", executions);
  json.member("planned", use().unplanned.load(std::memory_order_relaxed) == 0);
  json.member("largest_workspace_bytes", use().largest_workspace_bytes.load(std::memory_order_relaxed)).end_object();
}

}  // namespace cachalot::simulator
