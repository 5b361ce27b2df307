#include "simulator/driver/nvml.h"

#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <climits>
#include <cstring>
#include <string>
#include <type_traits>

#include "base/format.h"
#include "cachalot/errors.h"
#include "simulator/models/cuda_abi.h"
#include "simulator/models/device_attributes.h"
#include "simulator/models/shared_memory.h"
#include "simulator/state/calls.h"

namespace cachalot::simulator {

const Config* nvml_config() noexcept {
  static const std::optional<Config> config = []() -> std::optional<Config> {
    try {
      return read_config();
    } catch (const InvalidArgument& mistake) {
      print_error("cachalot simulator: {}\n", mistake.what());
      return std::nullopt;
    }
  }();
  return config ? &*config : nullptr;
}

NvmlResult nvml_text(std::string_view text, char* out, unsigned int length) {
  if (out == nullptr) return kNvmlInvalidArgument;
  if (length <= text.size()) return kNvmlInsufficientSize;
  out[text.copy(out, text.size())] = '\0';
  return kNvmlSuccess;
}

}  // namespace cachalot::simulator

using namespace cachalot::simulator;

namespace {

constexpr const char* kDriverVersion = "580.65.06";  // the first of CUDA 13.0

struct NvmlMemory {
  unsigned long long total, free, used;
};
struct NvmlMemoryV2 {
  unsigned int version;
  unsigned long long total, reserved, free, used;
};
struct NvmlProcess {  // nvmlProcessInfo_v1_t
  unsigned int pid;
  unsigned long long used_bytes;
};
struct NvmlProcessV2 {  // nvmlProcessInfo_v2_t
  unsigned int pid;
  unsigned long long used_bytes;
  unsigned int gpu_instance, compute_instance;
};

// Returns, for "0000:01:00.0", or with the eight digits for the domain that NVML writes: the part behind the domain, in
// capitals.
std::string bus_part_of(std::string_view id) {
  std::string part(id.substr(std::min(id.size(), id.find(':') + 1)));
  std::transform(part.begin(), part.end(), part.begin(), [](unsigned char c) { return std::toupper(c); });
  return part;
}

// Gives the handle of the first device that is_it(machine_number) accepts.
template <typename IsIt>
int find_device(NvmlDevice* handle, IsIt&& is_it) noexcept {
  return nvml_call([&](const Config& config) {
    if (handle == nullptr) return kNvmlInvalidArgument;
    for (int number = 0; number < config.machine_devices; ++number) {
      if (!is_it(number)) continue;
      *handle = nvml_device(number);
      return kNvmlSuccess;
    }
    return kNvmlNotFound;
  });
}

// Calls body(process, ordinal) if this process uses CUDA and sees the device.
template <typename Body>
bool ask_process(const Config& config, int machine_number, Body&& body) {
  const std::vector<int>& seen = config.physical_devices;
  const auto found = std::find(seen.begin(), seen.end(), machine_number);
  if (found == seen.end() || !Process::exists()) return false;
  return guarded([&](Process& process) { body(process, static_cast<int>(found - seen.begin())); }) == cudaSuccess;
}

std::vector<DeviceUser> other_users(const Config& config, int machine_number) {
  std::vector<DeviceUser> users;
  const bool is_told = ask_process(config, machine_number,
                                   [&](Process& process, int) { users = process.devices().others_on(machine_number); });
  if (!is_told && !config.shared_path.empty())
    users = cachalot::simulator::SharedMemory::users(config.shared_path, machine_number);
  return users;
}

NvmlMemory nvml_memory_of(const Config& config, int machine_number) {
  cachalot::MemoryInfo info;
  const bool is_told = ask_process(config, machine_number, [&](Process& process, int device) {
    info = process.allocations().memory_info(process.devices().at(device));
  });
  if (is_told) return {info.total_bytes, info.free_bytes, info.total_bytes - info.free_bytes};
  std::size_t used = 0;
  for (const DeviceUser& user : other_users(config, machine_number)) used += user.bytes;
  used = std::min(used, config.memory_bytes);
  cachalot::simulator::Report::note_early_memory_info(machine_number, config.memory_bytes - used);
  return {config.memory_bytes, config.memory_bytes - used, used};
}

std::vector<NvmlProcess> nvml_processes_of(const Config& config, int machine_number) {
  std::vector<NvmlProcess> result;
  ask_process(config, machine_number, [&](Process& process, int device) {
    if (!process.devices().at(device).active) return;
    const auto& simulated = *process.devices().at(device).simulated;
    result.push_back({static_cast<unsigned int>(getpid()), simulated.used_bytes() + simulated.driver_bytes()});
  });
  for (const DeviceUser& other : other_users(config, machine_number))
    result.push_back({static_cast<unsigned int>(other.process), other.bytes});
  return result;
}

void copy_process(const NvmlProcess& from, NvmlProcess& to) { to = from; }
void copy_process(const NvmlProcess& from, NvmlProcessV2& to) {
  constexpr unsigned int kNone = UINT_MAX;  // GPUs are not divided
  to = {from.pid, from.used_bytes, kNone, kNone};
}

// Gives this process, and those that share the device (`shared` of CACHALOT_SIM).
template <typename Info>
int give_processes(NvmlDevice handle, unsigned int* count, Info* processes) noexcept {
  return nvml_call_of(handle, [&](const Config& config, int number) {
    if (count == nullptr) return kNvmlInvalidArgument;
    const std::vector<NvmlProcess> all = nvml_processes_of(config, number);
    const unsigned int room = std::exchange(*count, static_cast<unsigned int>(all.size()));
    if (*count > room || processes == nullptr) return *count == 0 ? kNvmlSuccess : kNvmlInsufficientSize;
    for (std::size_t i = 0; i < all.size(); ++i) copy_process(all[i], processes[i]);
    return kNvmlSuccess;
  });
}

}  // namespace

NVML_FUNCTION(nvmlInit_v2)() { return nvml_config() == nullptr ? kNvmlDriverNotLoaded : kNvmlSuccess; }
NVML_FUNCTION(nvmlInit)() { return nvmlInit_v2(); }
NVML_FUNCTION(nvmlInitWithFlags)(unsigned int) { return nvmlInit_v2(); }
NVML_FUNCTION(nvmlShutdown)() { return kNvmlSuccess; }

extern "C" __attribute__((visibility("default"))) const char* nvmlErrorString(int result) {
  switch (result) {
    case kNvmlSuccess:
      return "The operation was successful";
    case kNvmlInvalidArgument:
      return "A supplied argument is invalid";
    case kNvmlNotSupported:
      return "The requested operation is not available on the simulated device";
    case kNvmlNotFound:
      return "A query to find an object was unsuccessful";
    case kNvmlDriverNotLoaded:
      return "CACHALOT_SIM is not valid, so there is no simulated GPU";
    case kNvmlInsufficientSize:
      return "An input argument is not large enough";
    default:
      return "An internal error of the simulator";
  }
}

// ---- the machine -----------------------------------------------------------------------------------------------------

NVML_FUNCTION(nvmlSystemGetCudaDriverVersion_v2)(int* version) {
  if (version == nullptr) return kNvmlInvalidArgument;
  *version = kCudaVersion;
  return kNvmlSuccess;
}
NVML_FUNCTION(nvmlSystemGetCudaDriverVersion)(int* version) { return nvmlSystemGetCudaDriverVersion_v2(version); }

NVML_FUNCTION(nvmlSystemGetDriverVersion)(char* text, unsigned int length) {
  return nvml_text(kDriverVersion, text, length);
}
NVML_FUNCTION(nvmlSystemGetNVMLVersion)(char* text, unsigned int length) {
  return nvml_call([&](const Config&) { return nvml_text(std::string("13.") + kDriverVersion, text, length); });
}

NVML_FUNCTION(nvmlSystemGetProcessName)(unsigned int pid, char* text, unsigned int length) {
  return nvml_call([&](const Config&) {
    char path[PATH_MAX];
    const ssize_t size = readlink(cachalot::formatted("/proc/{}/exe", pid).c_str(), path, sizeof(path));
    return size < 0 ? kNvmlNotFound : nvml_text({path, static_cast<std::size_t>(size)}, text, length);
  });
}

// Neither confidential computing nor a debugger of it.
NVML_FUNCTION(nvmlSystemGetConfComputeState)(unsigned int (*state)[3]) {
  if (state == nullptr) return kNvmlInvalidArgument;
  std::fill(std::begin(*state), std::end(*state), 0U);
  return kNvmlSuccess;
}

NVML_FUNCTION(nvmlUnitGetCount)(unsigned int* count) {
  if (count == nullptr) return kNvmlInvalidArgument;
  *count = 0;
  return kNvmlSuccess;
}
NVML_FUNCTION(nvmlGetExcludedDeviceCount)(unsigned int* count) { return nvmlUnitGetCount(count); }

// ---- handles ---------------------------------------------------------------------------------------------------------

NVML_FUNCTION(nvmlDeviceGetCount_v2)(unsigned int* count) {
  return nvml_call([&](const Config& config) {
    if (count == nullptr) return kNvmlInvalidArgument;
    *count = static_cast<unsigned int>(config.machine_devices);
    return kNvmlSuccess;
  });
}
NVML_FUNCTION(nvmlDeviceGetCount)(unsigned int* count) { return nvmlDeviceGetCount_v2(count); }

NVML_FUNCTION(nvmlDeviceGetHandleByIndex_v2)(unsigned int index, NvmlDevice* handle) {
  return nvml_call([&](const Config& config) {
    if (handle == nullptr || index >= static_cast<unsigned int>(config.machine_devices)) return kNvmlInvalidArgument;
    *handle = nvml_device(static_cast<int>(index));
    return kNvmlSuccess;
  });
}
NVML_FUNCTION(nvmlDeviceGetHandleByIndex)(unsigned int index, NvmlDevice* handle) {
  return nvmlDeviceGetHandleByIndex_v2(index, handle);
}

NVML_FUNCTION(nvmlDeviceGetHandleByPciBusId_v2)(const char* id, NvmlDevice* handle) {
  if (id == nullptr) return kNvmlInvalidArgument;
  return find_device(handle, [&](int number) { return bus_part_of(id) == bus_part_of(pci_bus_id(number)); });
}
NVML_FUNCTION(nvmlDeviceGetHandleByPciBusId)(const char* id, NvmlDevice* handle) {
  return nvmlDeviceGetHandleByPciBusId_v2(id, handle);
}

NVML_FUNCTION(nvmlDeviceGetHandleByUUID)(const char* uuid, NvmlDevice* handle) {
  if (uuid == nullptr) return kNvmlInvalidArgument;
  return find_device(handle, [&](int number) { return uuid_text(number) == uuid; });
}

NVML_FUNCTION(nvmlDeviceGetIndex)(NvmlDevice handle, unsigned int* index) {
  return nvml_value(handle, index, static_cast<unsigned int>(machine_number_of(handle)));
}
NVML_FUNCTION(nvmlDeviceGetMinorNumber)(NvmlDevice handle, unsigned int* number) {
  return nvmlDeviceGetIndex(handle, number);
}

NVML_FUNCTION(nvmlDeviceGetUUID)(NvmlDevice handle, char* text, unsigned int length) {
  return nvml_call_of(handle, [&](const Config&, int number) { return nvml_text(uuid_text(number), text, length); });
}

NVML_FUNCTION(nvmlDeviceGetName)(NvmlDevice handle, char* text, unsigned int length) {
  return nvml_call_of(handle, [&](const Config& config, int) { return nvml_text(config.gpu->product, text, length); });
}

// ---- memory and processes --------------------------------------------------------------------------------------------

NVML_FUNCTION(nvmlDeviceGetMemoryInfo)(NvmlDevice handle, NvmlMemory* memory) {
  return nvml_call_of(handle, [&](const Config& config, int number) {
    if (memory == nullptr) return kNvmlInvalidArgument;
    *memory = nvml_memory_of(config, number);
    return kNvmlSuccess;
  });
}

NVML_FUNCTION(nvmlDeviceGetMemoryInfo_v2)(NvmlDevice handle, NvmlMemoryV2* memory) {
  return nvml_call_of(handle, [&](const Config& config, int number) {
    if (memory == nullptr) return kNvmlInvalidArgument;
    const NvmlMemory info = nvml_memory_of(config, number);
    *memory = {memory->version, info.total, 0, info.free, info.used};
    return kNvmlSuccess;
  });
}

// The window through which the host sees the device's memory: as large as that, as on GPUs of servers, and not in use.
NVML_FUNCTION(nvmlDeviceGetBAR1MemoryInfo)(NvmlDevice handle, NvmlMemory* memory) {
  return nvml_call_of(handle, [&](const Config& config, int) {
    if (memory == nullptr) return kNvmlInvalidArgument;
    *memory = {config.memory_bytes, config.memory_bytes, 0};
    return kNvmlSuccess;
  });
}

NVML_FUNCTION(nvmlDeviceGetComputeRunningProcesses)(NvmlDevice handle, unsigned int* count, NvmlProcess* processes) {
  return give_processes(handle, count, processes);
}
NVML_FUNCTION(nvmlDeviceGetComputeRunningProcesses_v2)(NvmlDevice handle, unsigned int* count, NvmlProcessV2* all) {
  return give_processes(handle, count, all);
}
NVML_FUNCTION(nvmlDeviceGetComputeRunningProcesses_v3)(NvmlDevice handle, unsigned int* count, NvmlProcessV2* all) {
  return give_processes(handle, count, all);
}

// No process draws, and none uses the Multi-Process Service.
#define NVML_NO_PROCESSES(name) \
  NVML_FUNCTION(name)(NvmlDevice handle, unsigned int* count, void*) { return nvml_value(handle, count, 0); }
NVML_NO_PROCESSES(nvmlDeviceGetGraphicsRunningProcesses)
NVML_NO_PROCESSES(nvmlDeviceGetGraphicsRunningProcesses_v2)
NVML_NO_PROCESSES(nvmlDeviceGetGraphicsRunningProcesses_v3)
NVML_NO_PROCESSES(nvmlDeviceGetMPSComputeRunningProcesses)
NVML_NO_PROCESSES(nvmlDeviceGetMPSComputeRunningProcesses_v2)
NVML_NO_PROCESSES(nvmlDeviceGetMPSComputeRunningProcesses_v3)
