// The driver's functions about devices and contexts. The handle of a device's primary context is the device's state; other
// contexts (devices.h) have handles of their own.
#include <algorithm>
#include <cstring>
#include <vector>

#include "simulator/models/cuda_abi.h"
#include "simulator/models/device_attributes.h"
#include "simulator/state/calls.h"

using namespace cachalot::simulator;

namespace {

CUcontext context_of(DeviceState& device) { return reinterpret_cast<CUcontext>(&device); }

DeviceState* find_device(Process& process, CUcontext context) {
  for (int ordinal = 0; ordinal < process.devices().count(); ++ordinal) {
    if (context_of(process.devices().at(ordinal)) == context) return &process.devices().at(ordinal);
  }
  const Context* const other = process.contexts().find(context);
  return other ? &process.devices().at(other->device) : nullptr;
}

CUcontext current_context(Process& process) {
  const ThreadState& thread = this_thread();
  if (thread.context) return thread.context;
  return thread.has_context ? context_of(process.devices().at(thread.device)) : nullptr;
}

cudaError_t make_current(Process& process, CUcontext context) {
  ThreadState& thread = this_thread();
  if (!context) {
    thread.context = nullptr;
    thread.has_context = false;
    thread.device = thread.chosen;
    return cudaSuccess;
  }
  DeviceState* device = find_device(process, context);
  if (!device) return cudaErrorDeviceUninitialized;
  const bool is_primary = context == context_of(*device);
  if (is_primary) device->make_context();
  thread.device = device->ordinal;
  thread.has_context = true;
  thread.context = is_primary ? nullptr : context;
  return cudaSuccess;
}

// The driver's log of errors. PyTorch registers a callback around its calls. The simulated driver tells what is wrong where it
// goes wrong (report.h) and logs nothing, so callbacks are registered and never called.

struct LogCallback {
  CUlogsCallback function;
  void* data;
};

// Under process_mutex. A handle is the entry's address. Never destroyed: a program may end them late.
std::vector<LogCallback*>& log_callbacks() {
  static auto& callbacks = *new std::vector<LogCallback*>;
  return callbacks;
}

}  // namespace

extern "C" {

CUresult cuInit(unsigned int flags) {
  return driver_call([&](Process&) { return flags == 0 ? cudaSuccess : cudaErrorInvalidValue; });
}

CUresult cuDriverGetVersion(int* version) {
  *version = kCudaVersion;
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetCount(int* count) {
  *count = 0;
  return driver_call([&](Process& process) { *count = process.devices().count(); });
}

CUresult cuDeviceGet(CUdevice* device, int ordinal) {
  return driver_call([&](Process& process) { *device = process.devices().at(ordinal).ordinal; });
}

CUresult cuDeviceGetName(char* name, int length, CUdevice device) {
  return driver_call([&](Process& process) {
    process.devices().at(device);
    if (length <= 0) return cudaErrorInvalidValue;
    name[process.config().gpu->product.copy(name, static_cast<std::size_t>(length - 1))] = '\0';
    return cudaSuccess;
  });
}

CUresult cuDeviceGetUuid(CUuuid* uuid, CUdevice device) {
  return driver_call([&](Process& process) { *uuid = device_uuid(process.devices().at(device).machine_number); });
}

CUresult cuDeviceTotalMem(size_t* bytes, CUdevice device) {
  return driver_call([&](Process& process) {
    process.devices().at(device);
    *bytes = process.config().memory_bytes;
  });
}

CUresult cuDeviceGetAttribute(int* value, CUdevice_attribute attribute, CUdevice device) {
  return driver_call([&](Process& process) {
    *value = device_attribute(process.config(), process.devices().at(device).ordinal, attribute);
    if (const auto ruled = process.virtual_memory().rules().attribute(device, attribute)) *value = *ruled;
  });
}

CUresult cuDeviceGetPCIBusId(char* id, int length, CUdevice device) {
  return driver_call([&](Process& process) {
    const std::string text = pci_bus_id(process.devices().at(device).machine_number);
    if (length <= static_cast<int>(text.size())) return cudaErrorInvalidValue;
    std::memcpy(id, text.c_str(), text.size() + 1);
    return cudaSuccess;
  });
}

CUresult cuDeviceCanAccessPeer(int* can, CUdevice device, CUdevice peer) {
  return driver_call(
      [&](Process& process) { *can = process.devices().at(device).ordinal != process.devices().at(peer).ordinal; });
}

CACHALOT_SIMULATOR_BY_RUNTIME(2, cuDeviceGetByPCIBusId, cudaDeviceGetByPCIBusId)

CUresult cuDeviceComputeCapability(int* major, int* minor, CUdevice device) {
  return driver_call([&](Process& process) {
    process.devices().at(device);
    *major = process.config().gpu->major;
    *minor = process.config().gpu->minor;
  });
}

CACHALOT_SIMULATOR_BY_RUNTIME(4, cuDeviceGetP2PAttribute, cudaDeviceGetP2PAttribute)

CUresult cuDeviceGetExecAffinitySupport(int* supported, CUexecAffinityType, CUdevice device) {
  return driver_call([&](Process& process) {
    process.devices().at(device);
    *supported = 0;
  });
}

// ---- Primary contexts -----------------------------------------------------------------------------------------------

CUresult cuDevicePrimaryCtxGetState(CUdevice device, unsigned int* flags, int* active) {
  return driver_call([&](Process& process) {
    *flags = process.devices().at(device).flags;
    *active = process.devices().at(device).active;
  });
}

CUresult cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice device) {
  return driver_call([&](Process& process) {
    process.devices().at(device).make_context();
    *context = context_of(process.devices().at(device));
  });
}

CUresult cuDevicePrimaryCtxRelease(CUdevice device) {
  return driver_call([&](Process& process) { process.devices().at(device); });
}

CUresult cuDevicePrimaryCtxReset(CUdevice device) {
  return driver_call([&](Process& process) { process.reset(process.devices().at(device)); });
}

CUresult cuDevicePrimaryCtxSetFlags(CUdevice device, unsigned int flags) {
  return driver_call([&](Process& process) { process.devices().at(device).flags = flags; });
}

// ---- The thread's context -------------------------------------------------------------------------------------------

CUresult cuCtxGetCurrent(CUcontext* context) {
  return driver_call([&](Process& process) { *context = current_context(process); });
}

CUresult cuCtxSetCurrent(CUcontext context) {
  return driver_call([&](Process& process) { return make_current(process, context); });
}

CUresult cuCtxPushCurrent(CUcontext context) {
  return driver_call([&](Process& process) {
    const CUcontext before = current_context(process);
    const cudaError_t error = make_current(process, context);
    if (error != cudaSuccess || this_thread().contexts.push(before)) return error;
    make_current(process, before);
    return cudaErrorMemoryAllocation;
  });
}

CUresult cuCtxPopCurrent(CUcontext* context) {
  return driver_call([&](Process& process) {
    auto& below = this_thread().contexts;
    if (context) *context = current_context(process);
    if (below.empty()) return make_current(process, nullptr);
    return make_current(process, below.pop());
  });
}

CUresult cuCtxCreate(CUcontext* context, CUctxCreateParams*, unsigned int, CUdevice device) {
  const CUresult error =
      driver_call([&](Process& process) { *context = process.create_context(process.devices().at(device)); });
  return error == CUDA_SUCCESS ? cuCtxPushCurrent(*context) : error;
}

// A primary context stays, and is no longer current.
CUresult cuCtxDestroy(CUcontext context) {
  CUcontext current = nullptr;
  const CUresult error = driver_call([&](Process& process) {
    current = current_context(process);
    if (!find_device(process, context)) return cudaErrorDeviceUninitialized;
    if (process.contexts().find(context)) process.destroy_context("cuCtxDestroy", context);
    return cudaSuccess;
  });
  return error == CUDA_SUCCESS && current == context ? cuCtxPopCurrent(nullptr) : error;
}

CUresult cuCtxGetDevice_v2(CUdevice* device, CUcontext context) {
  return driver_call([&](Process& process) {
    const DeviceState* found = find_device(process, context ? context : current_context(process));
    if (!found) return cudaErrorDeviceUninitialized;
    *device = found->ordinal;
    return cudaSuccess;
  });
}
CUresult cuCtxGetDevice(CUdevice* device) { return cuCtxGetDevice_v2(device, nullptr); }

// Another after each reset.
CUresult cuCtxGetId(CUcontext context, unsigned long long* id) {
  return driver_call([&](Process& process) {
    const CUcontext asked = context ? context : current_context(process);
    if (const Context* const other = process.contexts().find(asked)) {
      *id = other->id;
      return cudaSuccess;
    }
    const DeviceState* device = find_device(process, asked);
    if (!device) return cudaErrorDeviceUninitialized;
    *id = 1 + static_cast<unsigned long long>(device->ordinal) + device->resets * 64;
    return cudaSuccess;
  });
}

CUresult cuCtxGetFlags(unsigned int* flags) {
  return call_in_context(__func__, [&](Process& process) { *flags = process.contexts().current().flags; });
}

CACHALOT_SIMULATOR_BY_RUNTIME(1, cuCtxSetFlags, cudaSetDeviceFlags)

CUresult cuCtxGetApiVersion(CUcontext, unsigned int* version) {
  return driver_call([&](Process&) {
    constexpr unsigned int kApiVersion = 3020;  // of every context since CUDA 3.2
    *version = kApiVersion;
  });
}

CACHALOT_SIMULATOR_BY_RUNTIME(2, cuCtxGetStreamPriorityRange, cudaDeviceGetStreamPriorityRange)

CUresult cuCtxSynchronize() {
  return call_in_context(__func__, [](Process& process) { process.waits().synchronize(process.contexts().current()); });
}

CUresult cuCtxSynchronize_v2(CUcontext context) {
  return driver_call([&](Process& process) {
    DeviceState* device = find_device(process, context ? context : current_context(process));
    if (!device) return cudaErrorDeviceUninitialized;
    process.waits().synchronize(*device);
    return cudaSuccess;
  });
}

CACHALOT_SIMULATOR_BY_RUNTIME_IN_CONTEXT(1, cuCtxGetCacheConfig, cudaDeviceGetCacheConfig)
CACHALOT_SIMULATOR_BY_RUNTIME_IN_CONTEXT(1, cuCtxSetCacheConfig, cudaDeviceSetCacheConfig)
CUresult cuCtxResetPersistingL2Cache() { return by_runtime(cudaCtxResetPersistingL2Cache); }
CUresult cuFlushGPUDirectRDMAWrites(CUflushGPUDirectRDMAWritesTarget, CUflushGPUDirectRDMAWritesScope) {
  return CUDA_SUCCESS;
}

CACHALOT_SIMULATOR_BY_RUNTIME(2, cuCtxGetLimit, cudaDeviceGetLimit)

CACHALOT_SIMULATOR_BY_RUNTIME_IN_CONTEXT(2, cuCtxSetLimit, cudaDeviceSetLimit)

CUresult cuCtxEnablePeerAccess(CUcontext peer, unsigned int flags) {
  if (!peer) return CUDA_ERROR_INVALID_CONTEXT;
  CUdevice device = -1;
  const CUresult found = cuCtxGetDevice_v2(&device, peer);
  return found == CUDA_SUCCESS ? by_runtime(cudaDeviceEnablePeerAccess, device, flags) : found;
}

CUresult cuCtxDisablePeerAccess(CUcontext peer) {
  if (!peer) return CUDA_ERROR_INVALID_CONTEXT;
  CUdevice device = -1;
  const CUresult found = cuCtxGetDevice_v2(&device, peer);
  return found == CUDA_SUCCESS ? by_runtime(cudaDeviceDisablePeerAccess, device) : found;
}

// ---- Logs of errors -------------------------------------------------------------------------------------------------

CUresult cuLogsRegisterCallback(CUlogsCallback callback, void* data, CUlogsCallbackHandle* handle) {
  return driver_call([&](Process&) {
    if (callback == nullptr) return cudaErrorInvalidValue;
    auto* const entry = new LogCallback{callback, data};
    log_callbacks().push_back(entry);
    if (handle != nullptr) *handle = reinterpret_cast<CUlogsCallbackHandle>(entry);
    return cudaSuccess;
  });
}

CUresult cuLogsUnregisterCallback(CUlogsCallbackHandle handle) {
  return driver_call([&](Process&) {
    std::vector<LogCallback*>& callbacks = log_callbacks();
    const auto found = std::find(callbacks.begin(), callbacks.end(), reinterpret_cast<LogCallback*>(handle));
    if (found == callbacks.end()) return cudaErrorInvalidValue;
    delete *found;
    callbacks.erase(found);
    return cudaSuccess;
  });
}

}  // extern "C"

CACHALOT_SIMULATOR_EXPORT CUresult cuProfilerStart() { return CUDA_SUCCESS; }
CACHALOT_SIMULATOR_EXPORT CUresult cuProfilerStop() { return CUDA_SUCCESS; }
