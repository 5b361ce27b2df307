// The driver's functions about memory: virtual memory, allocations, pointers, copies and fills, also of rows and in batches.
#include <cstring>
#include <vector>

#include "device/cuda_codes.h"
#include "simulator/base/report.h"
#include "simulator/state/calls.h"

using namespace cachalot;
using namespace cachalot::simulator;

namespace {

// Checks a description of physical memory as the driver does: of a device, pinned, shared by a descriptor or by fabric.
cudaError_t check_properties(const CUmemAllocationProp* properties) {
  if (properties->type != CU_MEM_ALLOCATION_TYPE_PINNED) return cudaErrorInvalidValue;
  if (properties->location.type != CU_MEM_LOCATION_TYPE_DEVICE) return cudaErrorNotSupported;
  constexpr int kShareable = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR | CU_MEM_HANDLE_TYPE_FABRIC;
  return (properties->requestedHandleTypes & ~kShareable) == 0 ? cudaSuccess : cudaErrorNotSupported;
}

template <typename Value>
cudaError_t give(void* to, Value value) {
  *static_cast<Value*>(to) = value;
  return cudaSuccess;
}

cudaError_t pointer_attribute(Process& process, void* value, CUpointer_attribute attribute, CUdeviceptr address) {
  cudaPointerAttributes what{};
  AddressRange range{};
  if (const DeviceState* owner = process.devices().find_owner(address)) {
    what.type = cudaMemoryTypeDevice;
    what.device = owner->ordinal;
    range = owner->simulated->memory_at(address)->range;
  } else if (const HostRange* host = process.host_memory().find(pointer(address))) {
    what.type = host->kind == HostRange::Kind::variable ? cudaMemoryTypeDevice : cudaMemoryTypeHost;
    what.device = host->device;
    range = {reinterpret_cast<Address>(host->start), host->bytes};
  } else {
    return cudaErrorInvalidValue;
  }
  const HostRange* host = process.host_memory().find(pointer(address));
  switch (attribute) {
    case CU_POINTER_ATTRIBUTE_CONTEXT:
      return give(value, reinterpret_cast<CUcontext>(&process.devices().at(what.device)));
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
      return give(value, what.type == cudaMemoryTypeDevice ? CU_MEMORYTYPE_DEVICE : CU_MEMORYTYPE_HOST);
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
      return give(value, address);
    case CU_POINTER_ATTRIBUTE_HOST_POINTER:
      return what.type == cudaMemoryTypeHost ? give(value, pointer(address)) : cudaErrorInvalidValue;
    case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS:
      return give(value, false);
    case CU_POINTER_ATTRIBUTE_BUFFER_ID:
      return give(value, static_cast<unsigned long long>(range.address));
    case CU_POINTER_ATTRIBUTE_IS_MANAGED:
      return give(value, host && host->kind == HostRange::Kind::managed);
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
      return give(value, what.device);
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
      return give(value, !host);
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
      return give(value, static_cast<CUdeviceptr>(range.address));
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
      return give(value, range.bytes);
    case CU_POINTER_ATTRIBUTE_MAPPED:
      return give(value, true);
    default:
      return cudaErrorNotSupported;
  }
}

// Writes the value that cuPointerGetAttributes gives for an attribute that the pointer does not have: zero.
void give_nothing(void* value, CUpointer_attribute attribute) {
  switch (attribute) {
    case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS:
    case CU_POINTER_ATTRIBUTE_IS_MANAGED:
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
    case CU_POINTER_ATTRIBUTE_MAPPED:
      give(value, false);
      break;
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
      give(value, 0);
      break;
    default:
      give(value, std::uint64_t{0});
  }
}

CUresult fill(CUdeviceptr to, std::uint64_t pattern, std::size_t pattern_bytes, std::size_t count, CUstream handle) {
  return call_in_context("cuMemset", [&](Process& process) {
    StreamState& stream = process.streams().at("cuMemset", handle);
    process.virtual_memory().sleeping().require_awake("cuMemset", pointer(to), count * pattern_bytes);
    process.uses().check("cuMemset", stream, pointer(to), nullptr, count * pattern_bytes);
    process.launches().launch(stream, cudaGraphNodeTypeMemset);
    process.uses().add("cuMemset", stream, pointer(to), nullptr, count * pattern_bytes);
    if (!stream.capture)
      process.copies().fill(pointer(to), pattern, pattern_bytes, count * pattern_bytes, count * pattern_bytes);
  });
}

// One side of a copy of rows.
struct Side {
  char* start = nullptr;
  std::size_t pitch = 0;
};

// False for an array.
bool find_side(Side& side, CUmemorytype type, const void* host, CUdeviceptr device, std::size_t x, std::size_t y,
               std::size_t pitch) {
  if (type == CU_MEMORYTYPE_ARRAY) return false;
  const void* base = type == CU_MEMORYTYPE_HOST ? host : pointer(device);
  side = {const_cast<char*>(static_cast<const char*>(base)) + y * pitch + x, pitch};
  return true;
}

CUresult copy_rows(const CUDA_MEMCPY2D& copy, CUstream stream) {
  Side from;
  Side to;
  if (!find_side(from, copy.srcMemoryType, copy.srcHost, copy.srcDevice, copy.srcXInBytes, copy.srcY, copy.srcPitch) ||
      !find_side(to, copy.dstMemoryType, copy.dstHost, copy.dstDevice, copy.dstXInBytes, copy.dstY, copy.dstPitch)) {
    note_not_simulated("cuMemcpy2D of an array");
    return CUDA_ERROR_NOT_SUPPORTED;
  }
  const auto pitch = [&](const Side& side) { return side.pitch == 0 ? copy.WidthInBytes : side.pitch; };
  return by_runtime_in_context("cuMemcpy2D", cudaMemcpy2DAsync, to.start, pitch(to), from.start, pitch(from),
                               copy.WidthInBytes, copy.Height, cudaMemcpyDefault, stream);
}

CUresult copy_rows_and_wait(const CUDA_MEMCPY2D& copy) {
  const CUresult error = copy_rows(copy, nullptr);
  return error == CUDA_SUCCESS ? by_runtime(cudaStreamSynchronize, nullptr) : error;
}

CUresult fill_rows(CUdeviceptr to, std::size_t pitch, std::uint64_t pattern, std::size_t pattern_bytes,
                   std::size_t width, std::size_t height, CUstream handle) {
  return call_in_context("cuMemsetD2D", [&](Process& process) {
    const std::size_t row_bytes = width * pattern_bytes;
    if (height > 1 && row_bytes > pitch) return cudaErrorInvalidValue;
    StreamState& stream = process.streams().at("cuMemsetD2D", handle);
    process.launches().launch(stream, cudaGraphNodeTypeMemset);
    for (std::size_t row = 0; row < height; ++row) {
      void* const start = pointer(to + row * pitch);
      if (process.captures().record_write(stream, start, row_bytes)) continue;
      process.copies().fill(start, pattern, pattern_bytes, row_bytes, row_bytes * height);
    }
    return cudaSuccess;
  });
}

// Returns the device of a context (null: of the current one), or -1 if there is none.
int device_of(CUcontext context) {
  CUdevice device = -1;
  return cuCtxGetDevice_v2(&device, context) == CUDA_SUCCESS ? device : -1;
}

}  // namespace

extern "C" {

// ---- Virtual memory -------------------------------------------------------------------------------------------------

CUresult cuMemGetAllocationGranularity(size_t* granularity, const CUmemAllocationProp* properties,
                                       CUmemAllocationGranularity_flags) {
  return driver_call([&](Process& process) {
    if (const cudaError_t error = check_properties(properties); error != cudaSuccess) return error;
    if (const cudaError_t error = process.virtual_memory().rules().granularity_error(*properties); error != cudaSuccess)
      return error;
    *granularity = process.devices().at(properties->location.id).simulated->properties().page_bytes;
    return cudaSuccess;
  });
}

CUresult cuMemAddressReserve(CUdeviceptr* address, size_t bytes, size_t alignment, CUdeviceptr, unsigned long long) {
  return call_virtual(__func__, [&](Process& process) {
    if ((alignment & (alignment - 1)) != 0) return cudaErrorInvalidValue;
    *address = process.virtual_memory().reserve(bytes, alignment);
    return *address ? cudaSuccess : cudaErrorMemoryAllocation;
  });
}

CUresult cuMemAddressFree(CUdeviceptr address, size_t bytes) {
  return call_virtual(__func__, [&](Process& process) { process.virtual_memory().unreserve(address, bytes); });
}

CUresult cuMemCreate(CUmemGenericAllocationHandle* handle, size_t bytes, const CUmemAllocationProp* properties,
                     unsigned long long) {
  return call_virtual(__func__, [&](Process& process) {
    if (const cudaError_t error = check_properties(properties); error != cudaSuccess) return error;
    if (const cudaError_t error = process.virtual_memory().rules().create_error(*properties); error != cudaSuccess)
      return error;
    *handle = process.virtual_memory().create(process.devices().at(properties->location.id), bytes);
    if (!*handle) return cudaErrorMemoryAllocation;
    process.virtual_memory().rules().made(*handle, *properties);
    return cudaSuccess;
  });
}

CUresult cuMemRelease(CUmemGenericAllocationHandle handle) {
  return call_virtual(__func__, [&](Process& process) { process.virtual_memory().release(handle); });
}

CUresult cuMemMap(CUdeviceptr address, size_t bytes, size_t offset, CUmemGenericAllocationHandle handle,
                  unsigned long long) {
  return call_virtual(__func__, [&](Process& process) {
    if (offset != 0) return cudaErrorInvalidValue;
    process.virtual_memory().map(address, bytes, handle);
    return cudaSuccess;
  });
}

CUresult cuMemUnmap(CUdeviceptr address, size_t bytes) {
  return call_virtual(__func__, [&](Process& process) {
    SimulatedDevice& device = process.devices().on_clock(process.devices().owner("cuMemUnmap", address).ordinal);
    process.uses().check_unmap({address, bytes});
    device.unmap(address, bytes);
    process.writes().forget(pointer(address), bytes);
    process.virtual_memory().sleeping().add({address, bytes});
  });
}

CUresult cuMemSetAccess(CUdeviceptr address, size_t bytes, const CUmemAccessDesc* access, size_t count) {
  return call_virtual(__func__, [&](Process& process) {
    const DeviceState& owner = process.devices().owner("cuMemSetAccess", address);
    std::vector<int> peers;
    for (std::size_t i = 0; i < count; ++i) {
      if (access[i].location.type != CU_MEM_LOCATION_TYPE_DEVICE) return cudaErrorNotSupported;
      const int device = process.devices().at(access[i].location.id).ordinal;
      if (device != owner.ordinal) peers.push_back(device);
      if (access[i].flags != CU_MEM_ACCESS_FLAGS_PROT_READWRITE) {
        note_not_simulated("cuMemSetAccess with an access other than CU_MEM_ACCESS_FLAGS_PROT_READWRITE");
        return cudaErrorNotSupported;
      }
    }
    const cudaError_t error =
        process.virtual_memory().rules().access_error(owner.ordinal, process.virtual_memory().mapped_at(address));
    if (error != cudaSuccess) return error;
    process.devices().on_clock(owner.ordinal).set_access(address, bytes, peers);
    return cudaSuccess;
  });
}

CUresult cuMemGetAccess(unsigned long long* flags, const CUmemLocation* location, CUdeviceptr address) {
  return driver_call([&](Process& process) {
    if (location->type != CU_MEM_LOCATION_TYPE_DEVICE) return cudaErrorNotSupported;
    const int device = process.devices().at(location->id).ordinal;
    const DeviceState& owner = process.devices().owner("cuMemGetAccess", address);
    const MemoryAt memory = *owner.simulated->memory_at(address);
    const bool may = device == owner.ordinal ? memory.accessible : (memory.peers >> device & 1) != 0;
    *flags = may ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE : CU_MEM_ACCESS_FLAGS_PROT_NONE;
    return cudaSuccess;
  });
}

CUresult cuMemExportToShareableHandle(void* shared, CUmemGenericAllocationHandle handle, CUmemAllocationHandleType type,
                                      unsigned long long) {
  return call_virtual(__func__, [&](Process& process) {
    if (type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) return cudaErrorNotSupported;
    const cudaError_t error = process.virtual_memory().rules().export_error(VirtualMemory::device_of(handle), type);
    if (error != cudaSuccess) return error;
    return give(shared, process.virtual_memory().export_handle(handle));
  });
}

CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle* handle, void* shared,
                                        CUmemAllocationHandleType type) {
  return call_virtual(__func__, [&](Process& process) {
    if (type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) return cudaErrorNotSupported;
    *handle = process.virtual_memory().import_handle(static_cast<int>(reinterpret_cast<std::intptr_t>(shared)));
    return cudaSuccess;
  });
}

CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle* handle, void* address) {
  return driver_call(
      [&](Process& process) { *handle = process.virtual_memory().retain_at(reinterpret_cast<Address>(address)); });
}

CUresult cuMemGetAllocationPropertiesFromHandle(CUmemAllocationProp* properties, CUmemGenericAllocationHandle handle) {
  return driver_call([&](Process& process) {
    *properties = {};
    properties->type = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties->requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    properties->location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    properties->location.id = process.devices().at(VirtualMemory::device_of(handle)).ordinal;
    if (const CUmemAllocationProp* made = process.virtual_memory().rules().properties(handle)) *properties = *made;
  });
}

// ---- Allocations ----------------------------------------------------------------------------------------------------

CUresult cuMemGetInfo(size_t* free, size_t* total) {
  return call_in_context(__func__, [&](Process& process) {
    const MemoryInfo info = process.allocations().memory_info(process.contexts().current());
    *free = info.free_bytes;
    *total = info.total_bytes;
  });
}

CUresult cuMemAlloc(CUdeviceptr* address, size_t bytes) {
  return call_in_context(__func__, [&](Process& process) {
    process.captures().require_safe("cuMemAlloc");
    if (bytes == 0) return cudaErrorInvalidValue;
    *address = reinterpret_cast<CUdeviceptr>(process.allocations().malloc(process.contexts().current(), bytes));
    return *address ? cudaSuccess : cudaErrorMemoryAllocation;
  });
}

CUresult cuMemFree(CUdeviceptr address) {
  return call_in_context(__func__, [&](Process& process) {
    if (address == 0) return cudaSuccess;
    process.captures().require_safe("cuMemFree");
    if (process.allocations().free_host(HostRange::Kind::managed, pointer(address))) return cudaSuccess;
    process.waits().have_waited_for(process.allocations().free("cuMemFree", address));
    return cudaSuccess;
  });
}

CUresult cuMemGetAddressRange(CUdeviceptr* base, size_t* bytes, CUdeviceptr address) {
  return call_in_context(__func__, [&](Process& process) {
    const AddressRange range =
        process.devices().owner("cuMemGetAddressRange", address).simulated->memory_at(address)->range;
    if (base) *base = range.address;
    if (bytes) *bytes = range.bytes;
  });
}

CACHALOT_SIMULATOR_BY_RUNTIME_IN_CONTEXT(2, cuMemAllocHost, cudaHostAlloc, cudaHostAllocDefault)
CACHALOT_SIMULATOR_BY_RUNTIME_IN_CONTEXT(3, cuMemHostAlloc, cudaHostAlloc)
CACHALOT_SIMULATOR_BY_RUNTIME_IN_CONTEXT(1, cuMemFreeHost, cudaFreeHost)
CACHALOT_SIMULATOR_BY_RUNTIME_IN_CONTEXT(3, cuMemHostRegister, cudaHostRegister)
CACHALOT_SIMULATOR_BY_RUNTIME_IN_CONTEXT(1, cuMemHostUnregister, cudaHostUnregister)
CACHALOT_SIMULATOR_BY_RUNTIME_IN_CONTEXT(2, cuMemHostGetFlags, cudaHostGetFlags)
CACHALOT_SIMULATOR_BY_RUNTIME_IN_CONTEXT(3, cuMemHostGetDevicePointer, cudaHostGetDevicePointer)

CACHALOT_SIMULATOR_BY_RUNTIME_IN_CONTEXT(3, cuMemAllocManaged, cudaMallocManaged)
CUresult cuMemAllocPitch(CUdeviceptr* address, size_t* pitch, size_t width, size_t height, unsigned int) {
  return by_runtime_in_context(__func__, cudaMallocPitch, reinterpret_cast<void**>(address), pitch, width, height);
}
CACHALOT_SIMULATOR_BY_RUNTIME_IN_CONTEXT(3, cuMemAllocAsync, cudaMallocAsync)
CACHALOT_SIMULATOR_BY_RUNTIME_IN_CONTEXT(2, cuMemFreeAsync, cudaFreeAsync)
CACHALOT_SIMULATOR_BY_RUNTIME_IN_CONTEXT(2, cuIpcGetMemHandle, cudaIpcGetMemHandle)
CUresult cuIpcOpenMemHandle(CUdeviceptr* address, CUipcMemHandle handle, unsigned int flags) {
  cudaIpcMemHandle_t runtime_handle;
  std::memcpy(&runtime_handle, &handle, sizeof(handle));
  return by_runtime_in_context(__func__, cudaIpcOpenMemHandle, reinterpret_cast<void**>(address), runtime_handle,
                               flags);
}
CACHALOT_SIMULATOR_BY_RUNTIME_IN_CONTEXT(1, cuIpcCloseMemHandle, cudaIpcCloseMemHandle)

// ---- Pointers -------------------------------------------------------------------------------------------------------

CUresult cuPointerGetAttribute(void* value, CUpointer_attribute attribute, CUdeviceptr address) {
  return driver_call([&](Process& process) { return pointer_attribute(process, value, attribute, address); });
}

CUresult cuPointerGetAttributes(unsigned int count, CUpointer_attribute* attributes, void** values,
                                CUdeviceptr address) {
  return driver_call([&](Process& process) {
    for (unsigned int i = 0; i < count; ++i) {
      const cudaError_t error = pointer_attribute(process, values[i], attributes[i], address);
      if (error == cudaErrorInvalidValue) {
        give_nothing(values[i], attributes[i]);
      } else if (error != cudaSuccess) {
        return error;
      }
    }
    return cudaSuccess;
  });
}

// Accepts the attribute, which changes nothing: the kinds of copies decide how they wait here.
CUresult cuPointerSetAttribute(const void*, CUpointer_attribute attribute, CUdeviceptr address) {
  return driver_call([&](Process& process) {
    process.devices().owner("cuPointerSetAttribute", address);
    return attribute == CU_POINTER_ATTRIBUTE_SYNC_MEMOPS ? cudaSuccess : cudaErrorNotSupported;
  });
}

// ---- Copies and fills -----------------------------------------------------------------------------------------------

CUresult cuMemcpyAsync(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream) {
  return by_runtime_in_context(__func__, cudaMemcpyAsync, pointer(to), pointer(from), bytes, cudaMemcpyDefault, stream);
}
CUresult cuMemcpyHtoDAsync(CUdeviceptr to, const void* from, size_t bytes, CUstream stream) {
  return by_runtime_in_context(__func__, cudaMemcpyAsync, pointer(to), from, bytes, cudaMemcpyHostToDevice, stream);
}
CUresult cuMemcpyDtoHAsync(void* to, CUdeviceptr from, size_t bytes, CUstream stream) {
  return by_runtime_in_context(__func__, cudaMemcpyAsync, to, pointer(from), bytes, cudaMemcpyDeviceToHost, stream);
}
CUresult cuMemcpyDtoDAsync(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream) {
  return by_runtime_in_context(__func__, cudaMemcpyAsync, pointer(to), pointer(from), bytes, cudaMemcpyDeviceToDevice,
                               stream);
}
CACHALOT_SIMULATOR_BY_RUNTIME_IN_CONTEXT(3, cuMemcpy, cudaMemcpy, cudaMemcpyDefault)
CACHALOT_SIMULATOR_BY_RUNTIME_IN_CONTEXT(3, cuMemcpyHtoD, cudaMemcpy, cudaMemcpyHostToDevice)
CACHALOT_SIMULATOR_BY_RUNTIME_IN_CONTEXT(3, cuMemcpyDtoH, cudaMemcpy, cudaMemcpyDeviceToHost)
CACHALOT_SIMULATOR_BY_RUNTIME_IN_CONTEXT(3, cuMemcpyDtoD, cudaMemcpy, cudaMemcpyDeviceToDevice)
CACHALOT_SIMULATOR_BY_RUNTIME_IN_CONTEXT(4, cuMemsetD8Async, cudaMemsetAsync)
CUresult cuMemsetD16Async(CUdeviceptr to, unsigned short value, size_t count, CUstream stream) {
  return fill(to, value, sizeof(value), count, stream);
}
CUresult cuMemsetD32Async(CUdeviceptr to, unsigned int value, size_t count, CUstream stream) {
  return fill(to, value, sizeof(value), count, stream);
}
CUresult cuMemsetD16(CUdeviceptr to, unsigned short value, size_t count) {
  return fill(to, value, sizeof(value), count, nullptr);
}
CUresult cuMemsetD32(CUdeviceptr to, unsigned int value, size_t count) {
  return fill(to, value, sizeof(value), count, nullptr);
}
CACHALOT_SIMULATOR_BY_RUNTIME_IN_CONTEXT(3, cuMemsetD8, cudaMemset)

CUresult cuMemcpyPeerAsync(CUdeviceptr to, CUcontext to_context, CUdeviceptr from, CUcontext from_context, size_t bytes,
                           CUstream stream) {
  return by_runtime_in_context(__func__, cudaMemcpyPeerAsync, pointer(to), device_of(to_context), pointer(from),
                               device_of(from_context), bytes, stream);
}
CUresult cuMemcpyPeer(CUdeviceptr to, CUcontext to_context, CUdeviceptr from, CUcontext from_context, size_t bytes) {
  return by_runtime_in_context(__func__, cudaMemcpyPeer, pointer(to), device_of(to_context), pointer(from),
                               device_of(from_context), bytes);
}

CUresult cuMemcpy2DAsync(const CUDA_MEMCPY2D* copy, CUstream stream) { return copy_rows(*copy, stream); }
CUresult cuMemcpy2D(const CUDA_MEMCPY2D* copy) { return copy_rows_and_wait(*copy); }
CUresult cuMemcpy2DUnaligned(const CUDA_MEMCPY2D* copy) { return copy_rows_and_wait(*copy); }

CACHALOT_SIMULATOR_BY_RUNTIME(8, cuMemcpyBatchAsync, cudaMemcpyBatchAsync)

CUresult cuMemsetD2D8Async(CUdeviceptr to, size_t pitch, unsigned char value, size_t width, size_t height,
                           CUstream stream) {
  return fill_rows(to, pitch, value, sizeof(value), width, height, stream);
}
CUresult cuMemsetD2D16Async(CUdeviceptr to, size_t pitch, unsigned short value, size_t width, size_t height,
                            CUstream stream) {
  return fill_rows(to, pitch, value, sizeof(value), width, height, stream);
}
CUresult cuMemsetD2D32Async(CUdeviceptr to, size_t pitch, unsigned int value, size_t width, size_t height,
                            CUstream stream) {
  return fill_rows(to, pitch, value, sizeof(value), width, height, stream);
}
CUresult cuMemsetD2D8(CUdeviceptr to, size_t pitch, unsigned char value, size_t width, size_t height) {
  return fill_rows(to, pitch, value, sizeof(value), width, height, nullptr);
}
CUresult cuMemsetD2D16(CUdeviceptr to, size_t pitch, unsigned short value, size_t width, size_t height) {
  return fill_rows(to, pitch, value, sizeof(value), width, height, nullptr);
}
CUresult cuMemsetD2D32(CUdeviceptr to, size_t pitch, unsigned int value, size_t width, size_t height) {
  return fill_rows(to, pitch, value, sizeof(value), width, height, nullptr);
}

// Managed memory is the host's already: nothing moves.
CUresult cuMemPrefetchAsync(CUdeviceptr address, size_t bytes, CUmemLocation, unsigned int flags, CUstream stream) {
  return by_runtime(cudaMemPrefetchAsync, pointer(address), bytes, {}, flags, stream);
}
CUresult cuMemAdvise(CUdeviceptr address, size_t bytes, CUmem_advise advice, CUmemLocation) {
  return by_runtime(cudaMemAdvise, pointer(address), bytes, static_cast<cudaMemoryAdvise>(advice), {});
}

// ---- Stream-ordered memory ------------------------------------------------------------------------------------------

CACHALOT_SIMULATOR_BY_RUNTIME(2, cuDeviceGetDefaultMemPool, cudaDeviceGetDefaultMemPool)
CACHALOT_SIMULATOR_BY_RUNTIME(2, cuDeviceGetMemPool, cudaDeviceGetMemPool)
CACHALOT_SIMULATOR_BY_RUNTIME(2, cuDeviceSetMemPool, cudaDeviceSetMemPool)
CACHALOT_SIMULATOR_BY_RUNTIME(3, cuMemGetDefaultMemPool, cudaMemGetDefaultMemPool)

CACHALOT_SIMULATOR_BY_RUNTIME(2, cuMemPoolCreate, cudaMemPoolCreate)
CACHALOT_SIMULATOR_BY_RUNTIME(1, cuMemPoolDestroy, cudaMemPoolDestroy)
CACHALOT_SIMULATOR_BY_RUNTIME(2, cuMemPoolTrimTo, cudaMemPoolTrimTo)
CACHALOT_SIMULATOR_BY_RUNTIME(3, cuMemPoolGetAttribute, cudaMemPoolGetAttribute)
CACHALOT_SIMULATOR_BY_RUNTIME(3, cuMemPoolSetAttribute, cudaMemPoolSetAttribute)
CACHALOT_SIMULATOR_BY_RUNTIME(3, cuMemPoolSetAccess, cudaMemPoolSetAccess)
CACHALOT_SIMULATOR_BY_RUNTIME(3, cuMemPoolGetAccess, cudaMemPoolGetAccess)

CACHALOT_SIMULATOR_BY_RUNTIME_IN_CONTEXT(4, cuMemAllocFromPoolAsync, cudaMallocFromPoolAsync)

}  // extern "C"
