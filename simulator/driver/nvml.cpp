// NVML, as far as PyTorch and programs about memory ask it: which devices there are, their names, memory and processes. A
// program that opens libnvidia-ml.so by name gets this library (redirection.cpp). There are neither NVLink nor a fabric.
//
// NVML's header is not among CUDA's: the types are declared here as it has them.

#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "simulator/models/cuda_abi.h"
#include "simulator/models/device_attributes.h"
#include "simulator/state/calls.h"

using namespace cachalot::simulator;

namespace {

// nvmlReturn_t
enum NvmlResult {
  kNvmlSuccess = 0,
  kNvmlInvalidArgument = 2,
  kNvmlNotSupported = 3,
  kNvmlNotFound = 6,
  kNvmlInsufficientSize = 7,
  kNvmlUnknown = 999,
};

using NvmlDevice = void*;  // of a device: its number on the machine from 1, whatever CUDA_VISIBLE_DEVICES leaves

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

template <typename Body>
NvmlResult nvml_call(Body&& body) noexcept {
  NvmlResult result = kNvmlUnknown;
  const cudaError_t error = guarded([&](Process& process) { result = body(process); });
  return error == cudaSuccess ? result : kNvmlUnknown;
}

NvmlDevice nvml_device(int machine_number) {
  return reinterpret_cast<NvmlDevice>(static_cast<std::uintptr_t>(machine_number) + 1);
}

int machine_number_of(NvmlDevice handle) { return static_cast<int>(reinterpret_cast<std::uintptr_t>(handle)) - 1; }

// Calls body(process, device) with the number of the handle's device in this process, which must see it.
template <typename Body>
NvmlResult call_of_device(NvmlDevice handle, Body&& body) noexcept {
  return nvml_call([&](Process& process) {
    const int number = machine_number_of(handle);
    if (number < 0 || number >= process.config().machine_devices) return kNvmlInvalidArgument;
    const std::vector<int>& seen = process.config().physical_devices;
    const auto found = std::find(seen.begin(), seen.end(), number);
    return found == seen.end() ? kNvmlNotSupported : body(process, static_cast<int>(found - seen.begin()));
  });
}

// Gives the handle of the device, of those that this process sees, whose number is_it(device) accepts.
template <typename IsIt>
NvmlResult find_device(NvmlDevice* handle, IsIt&& is_it) noexcept {
  return nvml_call([&](Process& process) {
    if (handle == nullptr) return kNvmlInvalidArgument;
    for (int device = 0; device < process.devices().count(); ++device) {
      if (!is_it(device)) continue;
      *handle = nvml_device(process.config().physical_devices[static_cast<std::size_t>(device)]);
      return kNvmlSuccess;
    }
    return kNvmlNotFound;
  });
}

NvmlResult nvml_text(std::string_view text, char* out, unsigned int length) {
  if (out == nullptr) return kNvmlInvalidArgument;
  if (length <= text.size()) return kNvmlInsufficientSize;
  out[text.copy(out, text.size())] = '\0';
  return kNvmlSuccess;
}

// "GPU-00112233-4455-6677-8899-aabbccddeeff"
std::string nvml_uuid(int device) {
  const CUuuid uuid = device_uuid(device);
  std::string text = "GPU-";
  for (int i = 0; i < 16; ++i) {
    char digits[3];
    std::snprintf(digits, sizeof(digits), "%02x", static_cast<unsigned char>(uuid.bytes[i]));
    text += (i == 4 || i == 6 || i == 8 || i == 10) ? std::string("-") + digits : digits;
  }
  return text;
}

// Returns, for "0000:01:00.0", or with the eight digits for the domain that NVML writes: the part behind the domain, in
// capitals.
std::string bus_part_of(std::string_view id) {
  std::string part(id.substr(std::min(id.size(), id.find(':') + 1)));
  std::transform(part.begin(), part.end(), part.begin(), [](unsigned char c) { return std::toupper(c); });
  return part;
}

NvmlMemory nvml_memory_of(Process& process, int device) {
  const cachalot::MemoryInfo info = process.devices().at(device).simulated->memory_info();
  return {info.total_bytes, info.free_bytes, info.total_bytes - info.free_bytes};
}

std::vector<NvmlProcess> nvml_processes_of(Process& process, int device, int machine_number) {
  std::vector<NvmlProcess> result;
  if (process.devices().at(device).active) {
    const auto& simulated = *process.devices().at(device).simulated;
    result.push_back({static_cast<unsigned int>(getpid()), simulated.used_bytes() + simulated.driver_bytes()});
  }
  for (const DeviceUser& other : process.devices().others_on(machine_number))
    result.push_back({static_cast<unsigned int>(other.process), other.bytes});
  return result;
}

}  // namespace

#define NVML_FUNCTION(name) __attribute__((visibility("default"))) int name

extern "C" {

NVML_FUNCTION(nvmlInit_v2)() { return kNvmlSuccess; }
NVML_FUNCTION(nvmlInit)() { return kNvmlSuccess; }
NVML_FUNCTION(nvmlInitWithFlags)(unsigned int) { return kNvmlSuccess; }
NVML_FUNCTION(nvmlShutdown)() { return kNvmlSuccess; }

__attribute__((visibility("default"))) const char* nvmlErrorString(int result) {
  switch (result) {
    case kNvmlSuccess:
      return "The operation was successful";
    case kNvmlInvalidArgument:
      return "A supplied argument is invalid";
    case kNvmlNotSupported:
      return "The requested operation is not available on the simulated device";
    case kNvmlNotFound:
      return "A query to find an object was unsuccessful";
    case kNvmlInsufficientSize:
      return "An input argument is not large enough";
    default:
      return "An internal error of the simulator";
  }
}

NVML_FUNCTION(nvmlSystemGetCudaDriverVersion_v2)(int* version) {
  if (version == nullptr) return kNvmlInvalidArgument;
  *version = kCudaVersion;
  return kNvmlSuccess;
}
NVML_FUNCTION(nvmlSystemGetCudaDriverVersion)(int* version) { return nvmlSystemGetCudaDriverVersion_v2(version); }

NVML_FUNCTION(nvmlDeviceGetCount_v2)(unsigned int* count) {
  return nvml_call([&](Process& process) {
    if (count == nullptr) return kNvmlInvalidArgument;
    *count = static_cast<unsigned int>(process.config().machine_devices);
    return kNvmlSuccess;
  });
}

NVML_FUNCTION(nvmlDeviceGetHandleByIndex_v2)(unsigned int index, NvmlDevice* handle) {
  return nvml_call([&](Process& process) {
    if (handle == nullptr || index >= static_cast<unsigned int>(process.config().machine_devices))
      return kNvmlInvalidArgument;
    *handle = nvml_device(static_cast<int>(index));
    return kNvmlSuccess;
  });
}

NVML_FUNCTION(nvmlDeviceGetHandleByPciBusId_v2)(const char* id, NvmlDevice* handle) {
  if (id == nullptr) return kNvmlInvalidArgument;
  return find_device(handle, [&](int device) { return bus_part_of(id) == bus_part_of(pci_bus_id(device)); });
}

NVML_FUNCTION(nvmlDeviceGetHandleByUUID)(const char* uuid, NvmlDevice* handle) {
  if (uuid == nullptr) return kNvmlInvalidArgument;
  return find_device(handle, [&](int device) { return nvml_uuid(device) == uuid; });
}

NVML_FUNCTION(nvmlDeviceGetIndex)(NvmlDevice handle, unsigned int* index) {
  return call_of_device(handle, [&](Process&, int) {
    if (index == nullptr) return kNvmlInvalidArgument;
    *index = static_cast<unsigned int>(machine_number_of(handle));
    return kNvmlSuccess;
  });
}

NVML_FUNCTION(nvmlDeviceGetUUID)(NvmlDevice handle, char* text, unsigned int length) {
  return call_of_device(handle, [&](Process&, int device) { return nvml_text(nvml_uuid(device), text, length); });
}

NVML_FUNCTION(nvmlDeviceGetName)(NvmlDevice handle, char* text, unsigned int length) {
  return call_of_device(handle,
                        [&](Process& process, int) { return nvml_text(process.config().gpu->product, text, length); });
}

NVML_FUNCTION(nvmlDeviceGetCudaComputeCapability)(NvmlDevice handle, int* major, int* minor) {
  return call_of_device(handle, [&](Process& process, int) {
    if (major == nullptr || minor == nullptr) return kNvmlInvalidArgument;
    *major = process.config().gpu->major;
    *minor = process.config().gpu->minor;
    return kNvmlSuccess;
  });
}

NVML_FUNCTION(nvmlDeviceGetMemoryInfo)(NvmlDevice handle, NvmlMemory* memory) {
  return call_of_device(handle, [&](Process& process, int device) {
    if (memory == nullptr) return kNvmlInvalidArgument;
    *memory = nvml_memory_of(process, device);
    return kNvmlSuccess;
  });
}

NVML_FUNCTION(nvmlDeviceGetMemoryInfo_v2)(NvmlDevice handle, NvmlMemoryV2* memory) {
  return call_of_device(handle, [&](Process& process, int device) {
    if (memory == nullptr) return kNvmlInvalidArgument;
    const NvmlMemory info = nvml_memory_of(process, device);
    *memory = {memory->version, info.total, 0, info.free, info.used};
    return kNvmlSuccess;
  });
}

// This process, and those that share the device (`shared` of CACHALOT_SIM).
NVML_FUNCTION(nvmlDeviceGetComputeRunningProcesses)(NvmlDevice handle, unsigned int* count, NvmlProcess* processes) {
  return call_of_device(handle, [&](Process& process, int device) {
    if (count == nullptr) return kNvmlInvalidArgument;
    const std::vector<NvmlProcess> all = nvml_processes_of(process, device, machine_number_of(handle));
    const unsigned int room = std::exchange(*count, static_cast<unsigned int>(all.size()));
    if (*count > room || processes == nullptr) return *count == 0 ? kNvmlSuccess : kNvmlInsufficientSize;
    std::copy(all.begin(), all.end(), processes);
    return kNvmlSuccess;
  });
}

// Devices read and write each other's memory over PCIe alone.
NVML_FUNCTION(nvmlDeviceGetP2PStatus)(NvmlDevice handle, NvmlDevice peer, int capability, int* status) {
  return call_of_device(handle, [&](Process& process, int) {
    enum { kRead = 0, kWrite = 1 };
    enum { kOk = 0, kPathNotSupported = 5 };
    const int number = machine_number_of(peer);
    if (status == nullptr || number < 0 || number >= process.config().machine_devices) return kNvmlInvalidArgument;
    *status = capability == kRead || capability == kWrite ? kOk : kPathNotSupported;
    return kNvmlSuccess;
  });
}

NVML_FUNCTION(nvmlDeviceGetNvLinkRemoteDeviceType)(NvmlDevice handle, unsigned int, int*) {
  return call_of_device(handle, [](Process&, int) { return kNvmlNotSupported; });
}
NVML_FUNCTION(nvmlDeviceGetNvLinkRemotePciInfo_v2)(NvmlDevice handle, unsigned int, void*) {
  return call_of_device(handle, [](Process&, int) { return kNvmlNotSupported; });
}
// The structure begins with its size, with a version in the highest byte. Of zeros, it says that there is no fabric.
NVML_FUNCTION(nvmlDeviceGetGpuFabricInfoV)(NvmlDevice handle, unsigned int* info) {
  return call_of_device(handle, [&](Process&, int) {
    constexpr std::size_t kMostBytes = 256;
    if (info == nullptr) return kNvmlInvalidArgument;
    const std::size_t bytes = *info & 0xFFFFFF;
    if (bytes < sizeof(*info) || bytes > kMostBytes) return kNvmlInvalidArgument;
    std::memset(info + 1, 0, bytes - sizeof(*info));
    return kNvmlSuccess;
  });
}

}  // extern "C"
