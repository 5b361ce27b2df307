// The runtime's functions about memory: device, pinned, managed; copies and fills; attributes of pointers.
#include <cstring>

#include "simulator/device/address_space.h"
#include "simulator/state/calls.h"

using namespace cachalot;
using namespace cachalot::simulator;

namespace {

// Pitches are multiples of this on every GPU so far.
constexpr std::size_t kPitchBytes = 512;

Address address_of(const void* pointer) { return reinterpret_cast<Address>(pointer); }

cudaError_t allocate(Process& process, void** pointer, std::size_t bytes) {
  if (!pointer) return cudaErrorInvalidValue;
  process.captures().require_safe("cudaMalloc");
  *pointer = nullptr;
  if (bytes == 0) return cudaSuccess;
  *pointer = process.allocations().malloc(process.contexts().current(), bytes);
  return *pointer ? cudaSuccess : cudaErrorMemoryAllocation;
}

cudaError_t allocate_host(Process& process, HostRange::Kind kind, void** pointer, std::size_t bytes,
                          unsigned int flags) {
  if (!pointer) return cudaErrorInvalidValue;
  process.captures().require_safe("cudaHostAlloc");
  const int device = process.contexts().current().ordinal;
  *pointer = nullptr;
  if (bytes == 0) return cudaSuccess;
  *pointer = process.allocations().malloc_host(kind, bytes, flags, device);
  return *pointer ? cudaSuccess : cudaErrorMemoryAllocation;
}

// Pages that the program brings are pinned in the same time as new ones.
void pass_time_of(Process& process, int device, DeviceCall call, std::size_t bytes) {
  const LatencyModel model = process.config().latency();
  const double us = model[call] + model.per_mib(call) * static_cast<double>(bytes) / static_cast<double>(kMiB);
  process.devices().on_clock(device).advance(static_cast<std::int64_t>(us * 1000));
}

// A copy is work on its stream, but its bytes move at the call. A graph gets the work alone.
cudaError_t copy_on(Process& process, StreamState& stream, void* to, const void* from, std::size_t bytes,
                    const char* call) {
  process.virtual_memory().sleeping().require_awake(call, from, bytes);
  process.virtual_memory().sleeping().require_awake(call, to, bytes);
  process.uses().check(call, stream, to, from, bytes);
  process.launches().launch_copy(stream, to, from, bytes);
  process.uses().add(call, stream, to, from, bytes);
  const bool is_to_host = !process.devices().hold(to) && process.devices().hold(from);
  if (is_to_host && !process.host_memory().is_pinned(to, bytes)) process.waits().have_waited_for(stream);
  if (!process.captures().record_write(stream, to, bytes)) process.copies().copy(to, from, bytes, bytes);
  return cudaSuccess;
}

cudaError_t fill_on(Process& process, StreamState& stream, void* to, int value, std::size_t bytes) {
  process.virtual_memory().sleeping().require_awake("cudaMemset", to, bytes);
  process.uses().check("cudaMemset", stream, to, nullptr, bytes);
  process.launches().launch(stream, cudaGraphNodeTypeMemset);
  process.uses().add("cudaMemset", stream, to, nullptr, bytes);
  if (!process.captures().record_write(stream, to, bytes))
    process.copies().fill(to, static_cast<unsigned char>(value), 1, bytes, bytes);
  return cudaSuccess;
}

struct Rows {
  std::size_t to_pitch;
  std::size_t from_pitch;
  std::size_t width;
  std::size_t height;
};

cudaError_t copy_rows_on(Process& process, StreamState& stream, void* to, const void* from, const Rows& rows) {
  if (rows.width > rows.to_pitch || rows.width > rows.from_pitch) return cudaErrorInvalidPitchValue;
  process.launches().launch_copy(stream, to, from, rows.width * rows.height);
  for (std::size_t row = 0; row < rows.height; ++row) {
    char* const start = static_cast<char*>(to) + row * rows.to_pitch;
    process.virtual_memory().sleeping().require_awake(
        "cudaMemcpy2D", static_cast<const char*>(from) + row * rows.from_pitch, rows.width);
    process.virtual_memory().sleeping().require_awake("cudaMemcpy2D", start, rows.width);
    if (process.captures().record_write(stream, start, rows.width)) continue;
    process.copies().copy(start, static_cast<const char*>(from) + row * rows.from_pitch, rows.width,
                          rows.width * rows.height);
  }
  return cudaSuccess;
}

StreamState& default_stream(Process& process) { return process.streams().at("cudaMemcpy", nullptr); }

}  // namespace

extern "C" {

// ---- Device memory --------------------------------------------------------------------------------------------------

cudaError_t cudaMalloc(void** pointer, size_t bytes) {
  return runtime_call([&](Process& process) { return allocate(process, pointer, bytes); });
}

cudaError_t cudaMallocPitch(void** pointer, size_t* pitch, size_t width, size_t height) {
  return runtime_call([&](Process& process) {
    *pitch = round_up(width, kPitchBytes);
    return allocate(process, pointer, *pitch * height);
  });
}

cudaError_t cudaMalloc3D(cudaPitchedPtr* pitched, cudaExtent extent) {
  return runtime_call([&](Process& process) {
    *pitched = {nullptr, round_up(extent.width, kPitchBytes), extent.width, extent.height};
    return allocate(process, &pitched->ptr, pitched->pitch * extent.height * extent.depth);
  });
}

cudaError_t cudaFree(void* pointer) {
  return runtime_call([&](Process& process) {
    process.contexts().current();
    if (!pointer) return cudaSuccess;
    process.captures().require_safe("cudaFree");
    if (process.allocations().free_host(HostRange::Kind::managed, pointer)) return cudaSuccess;
    if (process.pools().find(address_of(pointer))) return process.pools().free(address_of(pointer));
    process.waits().have_waited_for(process.allocations().free("cudaFree", address_of(pointer)));
    return cudaSuccess;
  });
}

cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
  return runtime_call([&](Process& process) {
    const MemoryInfo info = process.allocations().memory_info(process.contexts().current());
    *free = info.free_bytes;
    *total = info.total_bytes;
  });
}

// ---- Host memory ----------------------------------------------------------------------------------------------------

cudaError_t cudaHostAlloc(void** pointer, size_t bytes, unsigned int flags) {
  return runtime_call(
      [&](Process& process) { return allocate_host(process, HostRange::Kind::pinned, pointer, bytes, flags); });
}

cudaError_t cudaMallocHost(void** pointer, size_t bytes) { return cudaHostAlloc(pointer, bytes, cudaHostAllocDefault); }

cudaError_t cudaMallocManaged(void** pointer, size_t bytes, unsigned int flags) {
  return runtime_call([&](Process& process) {
    if (bytes == 0) return cudaErrorInvalidValue;
    return allocate_host(process, HostRange::Kind::managed, pointer, bytes, flags);
  });
}

cudaError_t cudaFreeHost(void* pointer) {
  return runtime_call([&](Process& process) {
    if (!pointer) return cudaSuccess;
    process.captures().require_safe("cudaFreeHost");
    return process.allocations().free_host(HostRange::Kind::pinned, pointer) ? cudaSuccess : cudaErrorInvalidValue;
  });
}

cudaError_t cudaHostRegister(void* pointer, size_t bytes, unsigned int flags) {
  return runtime_call([&](Process& process) {
    if (!pointer || bytes == 0) return cudaErrorInvalidValue;
    if (process.host_memory().overlaps(pointer, bytes)) return cudaErrorHostMemoryAlreadyRegistered;
    const int device = process.contexts().current().ordinal;
    process.host_memory().add({HostRange::Kind::registered, static_cast<char*>(pointer), bytes, flags, device});
    pass_time_of(process, device, DeviceCall::host_malloc, bytes);
    return cudaSuccess;
  });
}

cudaError_t cudaHostUnregister(void* pointer) {
  return runtime_call([&](Process& process) {
    const HostRange* range = process.host_memory().find(pointer);
    const HostRange registered = range ? *range : HostRange{};
    if (!process.allocations().free_host(HostRange::Kind::registered, pointer)) return cudaErrorHostMemoryNotRegistered;
    pass_time_of(process, registered.device, DeviceCall::host_free, registered.bytes);
    return cudaSuccess;
  });
}

cudaError_t cudaHostGetDevicePointer(void** device, void* host, unsigned int flags) {
  return runtime_call([&](Process& process) {
    if (flags != 0 || !process.host_memory().find(host)) return cudaErrorInvalidValue;
    *device = host;
    return cudaSuccess;
  });
}

cudaError_t cudaHostGetFlags(unsigned int* flags, void* host) {
  return runtime_call([&](Process& process) {
    const HostRange* range = process.host_memory().find(host);
    if (!range) return cudaErrorInvalidValue;
    *flags = range->flags;
    return cudaSuccess;
  });
}

cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* pointer) {
  return runtime_call([&](Process& process) {
    *attributes = {};
    void* plain = const_cast<void*>(pointer);
    if (const DeviceState* owner = process.devices().find_owner(address_of(pointer))) {
      attributes->type = cudaMemoryTypeDevice;
      attributes->device = owner->ordinal;
      attributes->devicePointer = plain;
    } else if (const HostRange* range = process.host_memory().find(pointer)) {
      using Kind = HostRange::Kind;
      attributes->type = range->kind == Kind::managed    ? cudaMemoryTypeManaged
                         : range->kind == Kind::variable ? cudaMemoryTypeDevice
                                                         : cudaMemoryTypeHost;
      attributes->device = range->device;
      attributes->devicePointer = plain;
      if (range->kind != Kind::variable) attributes->hostPointer = plain;
    } else {
      attributes->type = cudaMemoryTypeUnregistered;
      attributes->device = cudaInvalidDeviceId;
      attributes->hostPointer = plain;
    }
  });
}

// Managed memory is the host's already: nothing moves.
cudaError_t cudaMemPrefetchAsync(const void*, size_t, cudaMemLocation, unsigned int, cudaStream_t) {
  return runtime_call([](Process&) {});
}

cudaError_t cudaMemAdvise(const void*, size_t, cudaMemoryAdvise, cudaMemLocation) {
  return runtime_call([](Process&) {});
}

cudaError_t cudaStreamAttachMemAsync(cudaStream_t, void*, size_t, unsigned int) {
  return runtime_call([](Process&) {});
}

// ---- Copies and fills -----------------------------------------------------------------------------------------------

cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind, cudaStream_t stream) {
  return runtime_call([&](Process& process) {
    return copy_on(process, process.streams().at("cudaMemcpyAsync", stream), to, from, bytes, "cudaMemcpyAsync");
  });
}

cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind) {
  return runtime_call([&](Process& process) {
    process.captures().require_safe("cudaMemcpy");
    StreamState& stream = default_stream(process);
    copy_on(process, stream, to, from, bytes, "cudaMemcpy");
    process.waits().synchronize(stream);
  });
}

cudaError_t cudaMemcpyPeerAsync(void* to, int to_device, const void* from, int from_device, size_t bytes,
                                cudaStream_t stream) {
  return runtime_call([&](Process& process) {
    process.devices().at(to_device);
    process.devices().at(from_device);
    return copy_on(process, process.streams().at("cudaMemcpyPeerAsync", stream), to, from, bytes,
                   "cudaMemcpyPeerAsync");
  });
}

cudaError_t cudaMemcpyPeer(void* to, int to_device, const void* from, int from_device, size_t bytes) {
  const cudaError_t error = cudaMemcpyPeerAsync(to, to_device, from, from_device, bytes, cudaStreamLegacy);
  return error == cudaSuccess ? cudaStreamSynchronize(cudaStreamLegacy) : error;
}

cudaError_t cudaMemcpy2DAsync(void* to, size_t to_pitch, const void* from, size_t from_pitch, size_t width,
                              size_t height, cudaMemcpyKind, cudaStream_t stream) {
  return runtime_call([&](Process& process) {
    return copy_rows_on(process, process.streams().at("cudaMemcpy2DAsync", stream), to, from,
                        {to_pitch, from_pitch, width, height});
  });
}

cudaError_t cudaMemcpy2D(void* to, size_t to_pitch, const void* from, size_t from_pitch, size_t width, size_t height,
                         cudaMemcpyKind kind) {
  const cudaError_t error = cudaMemcpy2DAsync(to, to_pitch, from, from_pitch, width, height, kind, nullptr);
  return error == cudaSuccess ? cudaStreamSynchronize(nullptr) : error;
}

cudaError_t cudaMemcpyBatchAsync(void* const* to, const void* const* from, const size_t* sizes, size_t count,
                                 cudaMemcpyAttributes*, size_t*, size_t, cudaStream_t stream) {
  return runtime_call([&](Process& process) {
    StreamState& on = process.streams().at("cudaMemcpyBatchAsync", stream);
    for (std::size_t i = 0; i < count; ++i) copy_on(process, on, to[i], from[i], sizes[i], "cudaMemcpyBatchAsync");
  });
}

cudaError_t cudaMemsetAsync(void* to, int value, size_t bytes, cudaStream_t stream) {
  return runtime_call([&](Process& process) {
    return fill_on(process, process.streams().at("cudaMemsetAsync", stream), to, value, bytes);
  });
}

cudaError_t cudaMemset(void* to, int value, size_t bytes) {
  return runtime_call([&](Process& process) { return fill_on(process, default_stream(process), to, value, bytes); });
}

cudaError_t cudaMemset2DAsync(void* to, size_t pitch, int value, size_t width, size_t height, cudaStream_t handle) {
  return runtime_call([&](Process& process) {
    if (width > pitch) return cudaErrorInvalidPitchValue;
    StreamState& stream = process.streams().at("cudaMemset2DAsync", handle);
    process.launches().launch(stream, cudaGraphNodeTypeMemset);
    for (std::size_t row = 0; row < height; ++row) {
      char* const start = static_cast<char*>(to) + row * pitch;
      if (process.captures().record_write(stream, start, width)) continue;
      process.copies().fill(start, static_cast<unsigned char>(value), 1, width, width * height);
    }
    return cudaSuccess;
  });
}

cudaError_t cudaMemset2D(void* to, size_t pitch, int value, size_t width, size_t height) {
  return cudaMemset2DAsync(to, pitch, value, width, height, nullptr);
}

// ---- Sharing between processes --------------------------------------------------------------------------------------

cudaError_t cudaIpcGetMemHandle(cudaIpcMemHandle_t* handle, void* pointer) {
  return runtime_call([&](Process& process) { *handle = process.ipc().share(address_of(pointer)); });
}

cudaError_t cudaIpcOpenMemHandle(void** pointer, cudaIpcMemHandle_t handle, unsigned int) {
  return runtime_call([&](Process& process) { *pointer = reinterpret_cast<void*>(process.ipc().open(handle)); });
}

cudaError_t cudaIpcCloseMemHandle(void* pointer) {
  return runtime_call([&](Process& process) { process.ipc().close(address_of(pointer)); });
}

}  // extern "C"

CACHALOT_SIMULATOR_PER_THREAD(cudaMemPrefetchAsync, ptsz)
CACHALOT_SIMULATOR_PER_THREAD(cudaMemcpy, ptds)
CACHALOT_SIMULATOR_PER_THREAD(cudaMemcpy2D, ptds)
CACHALOT_SIMULATOR_PER_THREAD(cudaMemcpy2DAsync, ptsz)
CACHALOT_SIMULATOR_PER_THREAD(cudaMemcpyAsync, ptsz)
CACHALOT_SIMULATOR_PER_THREAD(cudaMemcpyBatchAsync, ptsz)
CACHALOT_SIMULATOR_PER_THREAD(cudaMemset, ptds)
CACHALOT_SIMULATOR_PER_THREAD(cudaMemset2D, ptds)
CACHALOT_SIMULATOR_PER_THREAD(cudaMemset2DAsync, ptsz)
CACHALOT_SIMULATOR_PER_THREAD(cudaMemsetAsync, ptsz)
CACHALOT_SIMULATOR_PER_THREAD(cudaStreamAttachMemAsync, ptsz)
