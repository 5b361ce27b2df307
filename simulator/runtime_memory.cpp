// The runtime's functions about memory: device, pinned, managed; copies and fills; what a pointer is.
#include <cstring>

#include "device/address_space.h"
#include "simulator/calls.h"

using namespace cachalot;
using namespace cachalot::simulator;

namespace {

// Pitches are multiples of this on every GPU so far.
constexpr std::size_t kPitchBytes = 512;

Address address_of(const void* pointer) { return reinterpret_cast<Address>(pointer); }

cudaError_t allocate(Process& process, void** pointer, std::size_t bytes) {
  if (!pointer) return cudaErrorInvalidValue;
  process.require_safe("cudaMalloc");
  *pointer = nullptr;
  if (bytes == 0) return cudaSuccess;
  *pointer = process.malloc(process.current(), bytes);
  return *pointer ? cudaSuccess : cudaErrorMemoryAllocation;
}

// Pinned memory is the device's: its calls are counted and may fail.
void* take_host(Process& process, HostRange::Kind kind, std::size_t bytes, unsigned int flags, int device) {
  if (kind == HostRange::Kind::managed) return process.host_memory.allocate_managed(bytes, flags, device);
  void* start = process.simulated(device).host_malloc(bytes);
  if (!start) return nullptr;
  process.host_memory.add({kind, static_cast<char*>(start), bytes, flags, device});
  process.watch.made(Owned::pinned_memory, start, device, bytes);
  return start;
}

cudaError_t allocate_host(Process& process, HostRange::Kind kind, void** pointer, std::size_t bytes,
                          unsigned int flags) {
  if (!pointer) return cudaErrorInvalidValue;
  process.require_safe("cudaHostAlloc");
  const int device = process.current().ordinal;
  *pointer = nullptr;
  if (bytes == 0) return cudaSuccess;
  *pointer = take_host(process, kind, bytes, flags, device);
  return *pointer ? cudaSuccess : cudaErrorMemoryAllocation;
}

// False: no range of this kind starts there.
bool free_host(Process& process, HostRange::Kind kind, void* start) {
  const HostRange* range = process.host_memory.find(start);
  if (!range || range->start != start || range->kind != kind) return false;
  process.forget_writes(start, range->bytes);
  if (kind == HostRange::Kind::pinned) process.simulated(range->device).host_free(start);
  process.watch.gone(Owned::pinned_memory, start);
  return process.host_memory.forget(kind, start);
}

// Pages that the program brings are pinned in the same time as new ones.
void pass_time_of(Process& process, int device, DeviceCall call, std::size_t bytes) {
  const LatencyModel model = process.config.latency();
  const double us = model[call] + model.per_mib(call) * static_cast<double>(bytes) / static_cast<double>(kMiB);
  process.simulated(device).advance(static_cast<std::int64_t>(us * 1000));
}

// A copy is work on its stream; what it moves it moves at the call. Into a graph only the work goes.
cudaError_t copy_on(Process& process, StreamState& stream, void* to, const void* from, std::size_t bytes,
                    const char* call) {
  process.check_use(call, stream, to, from, bytes);
  process.launch_copy(stream, to, from, bytes);
  process.add_use(call, stream, to, from, bytes);
  if (!stream.capture) process.copy(to, from, bytes);
  return cudaSuccess;
}

cudaError_t fill_on(Process& process, StreamState& stream, void* to, int value, std::size_t bytes) {
  process.check_use("cudaMemset", stream, to, nullptr, bytes);
  process.launch(stream, cudaGraphNodeTypeMemset);
  process.add_use("cudaMemset", stream, to, nullptr, bytes);
  if (!stream.capture) process.fill(to, static_cast<unsigned char>(value), 1, bytes, bytes);
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
  process.launch_copy(stream, to, from, rows.width * rows.height);
  if (stream.capture) return cudaSuccess;
  for (std::size_t row = 0; row < rows.height; ++row) {
    process.copy(static_cast<char*>(to) + row * rows.to_pitch, static_cast<const char*>(from) + row * rows.from_pitch,
                 rows.width, rows.width * rows.height);
  }
  return cudaSuccess;
}

StreamState& default_stream(Process& process) { return process.stream("cudaMemcpy", nullptr); }

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
    process.current();
    if (!pointer) return cudaSuccess;
    process.require_safe("cudaFree");
    if (free_host(process, HostRange::Kind::managed, pointer)) return cudaSuccess;
    if (process.pools.blocks.contains(address_of(pointer))) return process.free_to_pool(address_of(pointer));
    process.free("cudaFree", address_of(pointer));
    return cudaSuccess;
  });
}

cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
  return runtime_call([&](Process& process) {
    const MemoryInfo info = process.simulated(process.current().ordinal).memory_info();
    *free = info.free_bytes;
    *total = info.total_bytes;
    return cudaSuccess;
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
    process.require_safe("cudaFreeHost");
    return free_host(process, HostRange::Kind::pinned, pointer) ? cudaSuccess : cudaErrorInvalidValue;
  });
}

cudaError_t cudaHostRegister(void* pointer, size_t bytes, unsigned int flags) {
  return runtime_call([&](Process& process) {
    if (!pointer || bytes == 0) return cudaErrorInvalidValue;
    if (process.host_memory.overlaps(pointer, bytes)) return cudaErrorHostMemoryAlreadyRegistered;
    const int device = process.current().ordinal;
    process.host_memory.add({HostRange::Kind::registered, static_cast<char*>(pointer), bytes, flags, device});
    pass_time_of(process, device, DeviceCall::host_malloc, bytes);
    return cudaSuccess;
  });
}

cudaError_t cudaHostUnregister(void* pointer) {
  return runtime_call([&](Process& process) {
    const HostRange* range = process.host_memory.find(pointer);
    const HostRange registered = range ? *range : HostRange{};
    if (!free_host(process, HostRange::Kind::registered, pointer)) return cudaErrorHostMemoryNotRegistered;
    pass_time_of(process, registered.device, DeviceCall::host_free, registered.bytes);
    return cudaSuccess;
  });
}

cudaError_t cudaHostGetDevicePointer(void** device, void* host, unsigned int flags) {
  return runtime_call([&](Process& process) {
    if (flags != 0 || !process.host_memory.find(host)) return cudaErrorInvalidValue;
    *device = host;
    return cudaSuccess;
  });
}

cudaError_t cudaHostGetFlags(unsigned int* flags, void* host) {
  return runtime_call([&](Process& process) {
    const HostRange* range = process.host_memory.find(host);
    if (!range) return cudaErrorInvalidValue;
    *flags = range->flags;
    return cudaSuccess;
  });
}

cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* pointer) {
  return runtime_call([&](Process& process) {
    *attributes = {};
    void* plain = const_cast<void*>(pointer);
    if (const DeviceState* owner = process.find_owner(address_of(pointer))) {
      attributes->type = cudaMemoryTypeDevice;
      attributes->device = owner->ordinal;
      attributes->devicePointer = plain;
    } else if (const HostRange* range = process.host_memory.find(pointer)) {
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
    return cudaSuccess;
  });
}

// Managed memory is the host's already: nothing moves.
cudaError_t cudaMemPrefetchAsync(const void*, size_t, cudaMemLocation, unsigned int, cudaStream_t) {
  return runtime_call([](Process&) { return cudaSuccess; });
}

cudaError_t cudaMemAdvise(const void*, size_t, cudaMemoryAdvise, cudaMemLocation) {
  return runtime_call([](Process&) { return cudaSuccess; });
}

cudaError_t cudaStreamAttachMemAsync(cudaStream_t, void*, size_t, unsigned int) {
  return runtime_call([](Process&) { return cudaSuccess; });
}

// ---- Copies and fills -----------------------------------------------------------------------------------------------

cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind, cudaStream_t stream) {
  return runtime_call([&](Process& process) {
    return copy_on(process, process.stream("cudaMemcpyAsync", stream), to, from, bytes, "cudaMemcpyAsync");
  });
}

cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind) {
  return runtime_call([&](Process& process) {
    process.require_safe("cudaMemcpy");
    StreamState& stream = default_stream(process);
    copy_on(process, stream, to, from, bytes, "cudaMemcpy");
    process.synchronize(stream);
    return cudaSuccess;
  });
}

cudaError_t cudaMemcpyPeerAsync(void* to, int to_device, const void* from, int from_device, size_t bytes,
                                cudaStream_t stream) {
  return runtime_call([&](Process& process) {
    process.device(to_device);
    process.device(from_device);
    return copy_on(process, process.stream("cudaMemcpyPeerAsync", stream), to, from, bytes, "cudaMemcpyPeerAsync");
  });
}

cudaError_t cudaMemcpyPeer(void* to, int to_device, const void* from, int from_device, size_t bytes) {
  const cudaError_t error = cudaMemcpyPeerAsync(to, to_device, from, from_device, bytes, cudaStreamLegacy);
  return error == cudaSuccess ? cudaStreamSynchronize(cudaStreamLegacy) : error;
}

cudaError_t cudaMemcpy2DAsync(void* to, size_t to_pitch, const void* from, size_t from_pitch, size_t width,
                              size_t height, cudaMemcpyKind, cudaStream_t stream) {
  return runtime_call([&](Process& process) {
    return copy_rows_on(process, process.stream("cudaMemcpy2DAsync", stream), to, from,
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
    StreamState& on = process.stream("cudaMemcpyBatchAsync", stream);
    for (std::size_t i = 0; i < count; ++i) copy_on(process, on, to[i], from[i], sizes[i], "cudaMemcpyBatchAsync");
    return cudaSuccess;
  });
}

cudaError_t cudaMemsetAsync(void* to, int value, size_t bytes, cudaStream_t stream) {
  return runtime_call(
      [&](Process& process) { return fill_on(process, process.stream("cudaMemsetAsync", stream), to, value, bytes); });
}

cudaError_t cudaMemset(void* to, int value, size_t bytes) {
  return runtime_call([&](Process& process) { return fill_on(process, default_stream(process), to, value, bytes); });
}

cudaError_t cudaMemset2DAsync(void* to, size_t pitch, int value, size_t width, size_t height, cudaStream_t handle) {
  return runtime_call([&](Process& process) {
    if (width > pitch) return cudaErrorInvalidPitchValue;
    StreamState& stream = process.stream("cudaMemset2DAsync", handle);
    process.launch(stream, cudaGraphNodeTypeMemset);
    if (stream.capture) return cudaSuccess;
    for (std::size_t row = 0; row < height; ++row)
      process.fill(static_cast<char*>(to) + row * pitch, static_cast<unsigned char>(value), 1, width, width * height);
    return cudaSuccess;
  });
}

cudaError_t cudaMemset2D(void* to, size_t pitch, int value, size_t width, size_t height) {
  return cudaMemset2DAsync(to, pitch, value, width, height, nullptr);
}

// ---- Sharing between processes --------------------------------------------------------------------------------------

cudaError_t cudaIpcGetMemHandle(cudaIpcMemHandle_t* handle, void* pointer) {
  return runtime_call([&](Process& process) {
    *handle = process.export_memory(address_of(pointer));
    return cudaSuccess;
  });
}

cudaError_t cudaIpcOpenMemHandle(void** pointer, cudaIpcMemHandle_t handle, unsigned int) {
  return runtime_call([&](Process& process) {
    *pointer = reinterpret_cast<void*>(process.import_memory(handle));
    return cudaSuccess;
  });
}

cudaError_t cudaIpcCloseMemHandle(void* pointer) {
  return runtime_call([&](Process& process) {
    process.close_import(address_of(pointer));
    return cudaSuccess;
  });
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
