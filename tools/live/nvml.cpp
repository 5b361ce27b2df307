#include "tools/live/nvml.h"

#include <dlfcn.h>

#include <algorithm>
#include <optional>
#include <span>
#include <string>

namespace cachalot::tools::live {
namespace {

// NVML's types, as its header has them; nobody needs that header for this.
constexpr int kSuccess = 0;
constexpr int kInsufficientSize = 7;
constexpr unsigned kMostGpus = 1024;
constexpr unsigned kMostListed = 1U << 16;
constexpr auto kNotAvailable = ~0ULL;  // NVML_VALUE_NOT_AVAILABLE

struct MemoryV1 {
  unsigned long long total, free, used;
};
struct MemoryV2 {
  unsigned version = sizeof(MemoryV2) | 2U << 24;
  unsigned long long total = 0, reserved = 0, free = 0, used = 0;
};
struct ProcessV3 {  // nvmlProcessInfo_t of the functions that end in _v3
  unsigned pid;
  unsigned long long used;
  unsigned gpu_instance, compute_instance;
};

using Init = int();
using GetCount = int(unsigned*);
using GetHandle = int(unsigned, void**);
using GetText = int(void*, char*, unsigned);
template <typename Memory>
using GetMemory = int(void*, Memory*);
using GetProcesses = int(void*, unsigned*, ProcessV3*);

std::string nvml_text(GetText* function, void* device) {
  char text[128] = "";
  if (function == nullptr || function(device, text, sizeof(text)) != kSuccess) return "";
  text[sizeof(text) - 1] = '\0';
  return text;
}

}  // namespace

template <typename Function>
Function* Nvml::find(const char* name) const {
  return reinterpret_cast<Function*>(dlsym(library_, name));
}

std::unique_ptr<Nvml> Nvml::load() {
  void* const library = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return nullptr;
  std::unique_ptr<Nvml> nvml(new Nvml(library));
  Init* const init = nvml->find<Init>("nvmlInit_v2");
  if (init == nullptr || init() != kSuccess) return nullptr;
  return nvml;
}

// The library stays loaded: it may have threads.
Nvml::~Nvml() {
  if (Init* const shutdown = find<Init>("nvmlShutdown")) shutdown();
}

std::vector<GpuSample> Nvml::gpus() const {
  std::vector<GpuSample> gpus;
  GetCount* const get_count = find<GetCount>("nvmlDeviceGetCount_v2");
  GetHandle* const get_handle = find<GetHandle>("nvmlDeviceGetHandleByIndex_v2");
  unsigned count = 0;
  if (get_count == nullptr || get_handle == nullptr || get_count(&count) != kSuccess) return gpus;
  for (unsigned i = 0; i < std::min(count, kMostGpus); ++i) {
    void* device = nullptr;
    if (get_handle(i, &device) != kSuccess) continue;
    GpuSample gpu;
    gpu.index = static_cast<int>(i);
    gpu.name = nvml_text(find<GetText>("nvmlDeviceGetName"), device);
    gpu.uuid = nvml_text(find<GetText>("nvmlDeviceGetUUID"), device);
    if (gpu.uuid.starts_with("GPU-")) gpu.uuid.erase(0, 4);
    if (!read_memory(device, gpu)) continue;
    read_processes(device, gpu);
    gpus.push_back(std::move(gpu));
  }
  return gpus;
}

// The older function counts what is reserved for the driver as used.
bool Nvml::read_memory(void* device, GpuSample& gpu) const {
  MemoryV2 memory;
  if (auto* const get = find<GetMemory<MemoryV2>>("nvmlDeviceGetMemoryInfo_v2");
      get != nullptr && get(device, &memory) == kSuccess) {
    gpu.total_bytes = memory.total;
    gpu.used_bytes = memory.used;
    return true;
  }
  MemoryV1 older{};
  auto* const get = find<GetMemory<MemoryV1>>("nvmlDeviceGetMemoryInfo");
  if (get == nullptr || get(device, &older) != kSuccess) return false;
  gpu.total_bytes = older.total;
  gpu.used_bytes = older.used;
  return true;
}

// A process with memory may be in several of NVML's lists.
bool Nvml::read_processes(void* device, GpuSample& gpu) const {
  bool has_read = false;
  for (const char* name : {"nvmlDeviceGetComputeRunningProcesses_v3", "nvmlDeviceGetGraphicsRunningProcesses_v3",
                           "nvmlDeviceGetMPSComputeRunningProcesses_v3"}) {
    GetProcesses* const get = find<GetProcesses>(name);
    if (get == nullptr) continue;
    std::vector<ProcessV3> found(64);
    auto count = static_cast<unsigned>(found.size());
    int result = get(device, &count, found.data());
    while (result == kInsufficientSize && found.size() < kMostListed) {
      found.resize(std::min<std::size_t>(2 * std::max<std::size_t>(count, found.size()), kMostListed));
      count = static_cast<unsigned>(found.size());
      result = get(device, &count, found.data());
    }
    if (result != kSuccess) continue;
    has_read = true;
    for (const ProcessV3& each : std::span(found).first(std::min<std::size_t>(count, found.size()))) {
      if (std::ranges::find(gpu.processes, each.pid, &GpuProcess::pid) != gpu.processes.end()) continue;
      gpu.processes.push_back(
          {each.pid, each.used == kNotAvailable ? std::nullopt : std::optional<std::uint64_t>(each.used)});
    }
  }
  std::ranges::sort(gpu.processes, {}, &GpuProcess::pid);
  return has_read;
}

}  // namespace cachalot::tools::live
