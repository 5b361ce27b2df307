// The runtime's functions about devices, threads' current device, versions, limits and peers.
#include <algorithm>
#include <array>
#include <cstring>

#include "simulator/models/cuda_abi.h"
#include "simulator/models/device_attributes.h"
#include "simulator/state/calls.h"

using namespace cachalot::simulator;

namespace {

// "No device" and errors of the configuration must not be sticky for those who only ask.
cudaError_t count_devices(int* count) {
  cudaError_t error = cudaSuccess;
  Process* process = Process::get(error);
  *count = process ? process->config().devices : 0;
  return error;
}

// Names and texts of error codes.

struct ErrorText {
  int code;
  const char* runtime_name;
  const char* driver_name;
  const char* text;
};

constexpr ErrorText kErrors[] = {
#define ERROR(code, runtime_name, driver_name, text) {code, runtime_name, driver_name, text},
#include "simulator/runtime/errors.inc"
#undef ERROR
};

const ErrorText* find_error(int code) {
  const auto* at = std::find_if(std::begin(kErrors), std::end(kErrors), [&](const auto& e) { return e.code == code; });
  return at == std::end(kErrors) ? nullptr : at;
}

constexpr auto kUnknown = "unrecognized error code";

}  // namespace

extern "C" {

cudaError_t cudaGetDeviceCount(int* count) {
  const cudaError_t error = count_devices(count);
  if (error != cudaSuccess) this_thread().last_error = error;
  return error;
}

cudaError_t cudaSetDevice(int device) {
  return runtime_call([&](Process& process) {
    process.devices().at(device).make_context();
    this_thread().device = this_thread().chosen = device;
    this_thread().has_context = true;
    this_thread().context = nullptr;
  });
}

cudaError_t cudaGetDevice(int* device) {
  return unlocked_runtime_call([&] { *device = this_thread().device; });
}

cudaError_t cudaInitDevice(int device, unsigned int flags, unsigned int) {
  return runtime_call([&](Process& process) {
    process.devices().at(device).flags = flags;
    process.devices().at(device).make_context();
  });
}

cudaError_t cudaSetValidDevices(int* devices, int count) {
  return runtime_call([&](Process& process) {
    for (int i = 0; i < count; ++i) process.devices().at(devices[i]);
  });
}

cudaError_t cudaSetDeviceFlags(unsigned int flags) {
  return runtime_call([&](Process& process) { process.contexts().current().flags = flags; });
}

cudaError_t cudaGetDeviceFlags(unsigned int* flags) {
  return runtime_call([&](Process& process) { *flags = process.contexts().current().flags; });
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* prop, int device) {
  return runtime_call(
      [&](Process& process) { *prop = device_properties(process.config(), process.devices().at(device).ordinal); });
}

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device) {
  return runtime_call([&](Process& process) {
    *value = device_attribute(process.config(), process.devices().at(device).ordinal, attribute);
  });
}

cudaError_t cudaChooseDevice(int* device, const cudaDeviceProp*) {
  return runtime_call([&](Process&) { *device = 0; });
}

cudaError_t cudaDeviceGetPCIBusId(char* id, int length, int device) {
  return runtime_call([&](Process& process) {
    const std::string text = pci_bus_id(process.devices().at(device).machine_number);
    if (length <= static_cast<int>(text.size())) return cudaErrorInvalidValue;
    std::memcpy(id, text.c_str(), text.size() + 1);
    return cudaSuccess;
  });
}

cudaError_t cudaDeviceGetByPCIBusId(int* device, const char* id) {
  return runtime_call([&](Process& process) {
    for (int ordinal = 0; ordinal < process.devices().count(); ++ordinal) {
      if (pci_bus_id(process.devices().at(ordinal).machine_number) != id) continue;
      *device = ordinal;
      return cudaSuccess;
    }
    return cudaErrorInvalidDevice;
  });
}

cudaError_t cudaDeviceReset() {
  return runtime_call([](Process& process) { process.reset(process.devices().at(this_thread().device)); });
}

cudaError_t cudaDeviceSynchronize() {
  return runtime_call([&](Process& process) { process.waits().synchronize(process.contexts().current()); });
}

cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  return runtime_call([&](Process&) {
    constexpr int kGreatest = -5;  // as on recent GPUs
    if (least) *least = 0;
    if (greatest) *greatest = kGreatest;
  });
}

cudaError_t cudaDeviceGetLimit(size_t* value, cudaLimit limit) {
  return runtime_call(
      [&](Process& process) { return process.devices().at(this_thread().device).limits.get(limit, *value); });
}

cudaError_t cudaDeviceSetLimit(cudaLimit limit, size_t value) {
  return runtime_call([&](Process& process) { return process.contexts().current().set_limit(limit, value); });
}

cudaError_t cudaDeviceGetCacheConfig(cudaFuncCache* config) {
  return runtime_call([&](Process&) { *config = cudaFuncCachePreferNone; });
}

cudaError_t cudaDeviceSetCacheConfig(cudaFuncCache) {
  return runtime_call([](Process&) {});
}

cudaError_t cudaCtxResetPersistingL2Cache() {
  return runtime_call([](Process&) {});
}

cudaError_t cudaDeviceFlushGPUDirectRDMAWrites(cudaFlushGPUDirectRDMAWritesTarget, cudaFlushGPUDirectRDMAWritesScope) {
  return runtime_call([](Process&) {});
}

// ---- Peers ----------------------------------------------------------------------------------------------------------

cudaError_t cudaDeviceCanAccessPeer(int* can, int device, int peer) {
  return runtime_call(
      [&](Process& process) { *can = process.devices().at(device).ordinal != process.devices().at(peer).ordinal; });
}

cudaError_t cudaDeviceEnablePeerAccess(int peer, unsigned int flags) {
  return runtime_call([&](Process& process) {
    if (flags != 0) return cudaErrorInvalidValue;
    const int ordinal = process.devices().at(peer).ordinal;
    if (ordinal == process.contexts().current().ordinal) return cudaErrorInvalidDevice;
    auto enabled = process.contexts().current().peers[static_cast<std::size_t>(ordinal)];
    if (enabled) return cudaErrorPeerAccessAlreadyEnabled;
    enabled = true;
    return cudaSuccess;
  });
}

cudaError_t cudaDeviceDisablePeerAccess(int peer) {
  return runtime_call([&](Process& process) {
    auto enabled = process.contexts().current().peers[static_cast<std::size_t>(process.devices().at(peer).ordinal)];
    if (!enabled) return cudaErrorPeerAccessNotEnabled;
    enabled = false;
    return cudaSuccess;
  });
}

cudaError_t cudaDeviceGetP2PAttribute(int* value, cudaDeviceP2PAttr attribute, int from, int to) {
  return runtime_call([&](Process& process) {
    if (process.devices().at(from).ordinal == process.devices().at(to).ordinal) return cudaErrorInvalidDevice;
    *value = attribute != cudaDevP2PAttrCudaArrayAccessSupported;
    return cudaSuccess;
  });
}

// ---- Versions and errors --------------------------------------------------------------------------------------------

cudaError_t cudaDriverGetVersion(int* version) {
  *version = kCudaVersion;
  return cudaSuccess;
}

cudaError_t cudaRuntimeGetVersion(int* version) {
  *version = kCudaVersion;
  return cudaSuccess;
}

cudaError_t cudaGetLastError() { return std::exchange(this_thread().last_error, cudaSuccess); }
cudaError_t cudaPeekAtLastError() { return this_thread().last_error; }

cudaChannelFormatDesc cudaCreateChannelDesc(int x, int y, int z, int w, cudaChannelFormatKind kind) {
  return {x, y, z, w, kind};
}

cudaError_t cudaProfilerStart() { return cudaSuccess; }
cudaError_t cudaProfilerStop() { return cudaSuccess; }

// ---- Names and texts of error codes ---------------------------------------------------------------------------------

const char* cudaGetErrorName(cudaError_t error) {
  const ErrorText* found = find_error(error);
  return found ? found->runtime_name : kUnknown;
}

const char* cudaGetErrorString(cudaError_t error) {
  const ErrorText* found = find_error(error);
  return found ? found->text : kUnknown;
}

CUresult cuGetErrorName(CUresult error, const char** name) {
  const ErrorText* found = find_error(error);
  *name = found ? found->driver_name : nullptr;
  return *name ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuGetErrorString(CUresult error, const char** text) {
  const ErrorText* found = find_error(error);
  *text = found && found->driver_name ? found->text : nullptr;
  return *text ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

}  // extern "C"
