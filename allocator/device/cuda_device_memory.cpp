// A GPU's memory: calls that allocate, map, copy and share it.
#include <cstring>
#include <vector>

#include "cachalot/errors.h"
#include "device/cuda_device.h"
#include "device/cuda_driver.h"
#include "device/cuda_handle_form.h"
#include "device/cuda_memory_form.h"
#include "device/cuda_relaxed_capture.h"

CACHALOT_BEGIN

namespace {

// Whether a call that allocates found no memory; throws its other errors, among them those of earlier work on the
// device.
bool lacks_memory(const char* call, CUresult result) {
  if (result == CUDA_ERROR_OUT_OF_MEMORY) return true;
  check(call, result);
  return false;
}

}  // namespace

MemoryInfo CudaDevice::memory_info() {
  const CudaContext::Current current(context_);
  MemoryInfo info;
  check("cuMemGetInfo", driver().memory_info(&info.free_bytes, &info.total_bytes));
  if (host_memory_file_.empty()) return info;
  return with_available_bytes(info, available_host_bytes(host_memory_file_));
}

bool CudaDevice::exceeds_host_memory(std::size_t bytes) const {
  if (host_memory_file_.empty()) return false;
  const std::optional<std::size_t> available = available_host_bytes(host_memory_file_);
  return available && bytes > *available;
}

std::optional<Address> CudaDevice::malloc(std::size_t bytes) {
  constexpr auto kCall = "cuMemAlloc";
  const CudaContext::Current current(context_);
  const RelaxedCapture relaxed;
  CUdeviceptr address = 0;
  if (exceeds_host_memory(bytes)) return std::nullopt;
  if (lacks_memory(kCall, driver().memory_alloc(&address, bytes))) return std::nullopt;
  return static_cast<Address>(address);
}

void CudaDevice::free(Address address) {
  constexpr auto kCall = "cuMemFree";
  if (address == 0) check(kCall, CUDA_ERROR_INVALID_VALUE);  // CUDA would do nothing
  const CudaContext::Current current(context_);
  // cuMemFree may wait for work on the device, by its documentation; the allocator counts on it.
  check("cuCtxSynchronize", driver().context_synchronize());
  check(kCall, driver().memory_free(address));
}

// A device that has no pools says so with CUDA_ERROR_NOT_SUPPORTED.
std::optional<Address> CudaDevice::malloc_async(std::size_t bytes, Stream stream) {
  constexpr auto kCall = "cuMemAllocAsync";
  if (driver().memory_alloc_async == nullptr) return malloc(bytes);
  const CudaContext::Current current(context_);
  CUdeviceptr address = 0;
  if (exceeds_host_memory(bytes)) return std::nullopt;
  if (lacks_memory(kCall, driver().memory_alloc_async(&address, bytes, stream))) return std::nullopt;
  return static_cast<Address>(address);
}

void CudaDevice::free_async(Address address, Stream stream) {
  if (driver().memory_free_async == nullptr) return free(address);
  const CudaContext::Current current(context_);
  check("cuMemFreeAsync", driver().memory_free_async(address, stream));
}

void CudaDevice::require_virtual_memory(const char* call) const {
  if (!properties_.virtual_memory) check(call, CUDA_ERROR_NOT_SUPPORTED);
}

std::optional<Address> CudaDevice::reserve(std::size_t bytes) {
  constexpr auto kCall = "cuMemAddressReserve";
  require_virtual_memory(kCall);
  const CudaContext::Current current(context_);
  CUdeviceptr address = 0;
  const CUresult result = driver().address_reserve(&address, bytes, 0, 0, 0);
  if (result == CUDA_ERROR_OUT_OF_MEMORY) return std::nullopt;
  check(kCall, result);
  return static_cast<Address>(address);
}

void CudaDevice::unreserve(Address address, std::size_t bytes) {
  require_virtual_memory("cuMemAddressFree");
  const CudaContext::Current current(context_);
  check("cuMemAddressFree", driver().address_free(address, bytes));
}

std::optional<MemoryHandle> CudaDevice::create(std::size_t bytes) {
  constexpr auto kCall = "cuMemCreate";
  require_virtual_memory(kCall);
  const CudaContext::Current current(context_);
  const std::optional<HandleForm> form = form_->working(properties_.page_bytes);
  if (!form || exceeds_host_memory(bytes)) return std::nullopt;
  const CUmemAllocationProp properties = allocation_properties(ordinal_, *form);
  CUmemGenericAllocationHandle handle = 0;
  if (lacks_memory(kCall, driver().create(&handle, bytes, &properties, 0))) return std::nullopt;
  return handle;
}

void CudaDevice::release(MemoryHandle handle) {
  require_virtual_memory("cuMemRelease");
  const CudaContext::Current current(context_);
  check("cuMemRelease", driver().release(handle));
}

void CudaDevice::map(Address address, std::size_t bytes, MemoryHandle handle) {
  require_virtual_memory("cuMemMap");
  const CudaContext::Current current(context_);
  check("cuMemMap", driver().map(address, bytes, 0, handle, 0));
}

void CudaDevice::unmap(Address address, std::size_t bytes) {
  require_virtual_memory("cuMemUnmap");
  const CudaContext::Current current(context_);
  check("cuMemUnmap", driver().unmap(address, bytes));
}

void CudaDevice::set_access(Address address, std::size_t bytes, const std::vector<int>& peers) {
  require_virtual_memory("cuMemSetAccess");
  const CudaContext::Current current(context_);
  const CUmemAccessDesc access = access_of(ordinal_);
  if (peers.empty()) return check("cuMemSetAccess", driver().set_access(address, bytes, &access, 1));
  std::vector<CUmemAccessDesc> all(1 + peers.size(), access);
  for (std::size_t i = 0; i < peers.size(); ++i) all[1 + i].location.id = peers[i];
  check("cuMemSetAccess", driver().set_access(address, bytes, all.data(), all.size()));
}

// By fabric where that works, which reaches further. A handle of both kinds may still be exported by one alone.
ShareableHandle CudaDevice::export_handle(MemoryHandle handle) {
  constexpr auto kCall = "cuMemExportToShareableHandle";
  require_virtual_memory(kCall);
  const CudaContext::Current current(context_);
  CUmemAllocationProp properties{};
  check("cuMemGetAllocationPropertiesFromHandle", driver().get_properties(&properties, handle));
  ShareableHandle shared;
  if ((properties.requestedHandleTypes & CU_MEM_HANDLE_TYPE_FABRIC) != 0) {
    static_assert(sizeof(CUmemFabricHandle) == sizeof(shared.fabric));
    shared.kind = ShareableHandle::Kind::fabric;
    const CUresult result = driver().export_handle(shared.fabric.data(), handle, CU_MEM_HANDLE_TYPE_FABRIC, 0);
    if (result == CUDA_SUCCESS) return shared;
    if ((properties.requestedHandleTypes & CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) == 0) check(kCall, result);
  }
  shared.kind = ShareableHandle::Kind::descriptor;
  check(kCall, driver().export_handle(&shared.descriptor, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
  return shared;
}

MemoryHandle CudaDevice::import_handle(const ShareableHandle& shared) {
  constexpr auto kCall = "cuMemImportFromShareableHandle";
  require_virtual_memory(kCall);
  const CudaContext::Current current(context_);
  const bool is_fabric = shared.kind == ShareableHandle::Kind::fabric;
  auto fabric = shared.fabric;
  void* const what = is_fabric ? static_cast<void*>(fabric.data())
                               : reinterpret_cast<void*>(static_cast<std::intptr_t>(shared.descriptor));
  CUmemGenericAllocationHandle handle = 0;
  check(kCall, driver().import_handle(
                   &handle, what, is_fabric ? CU_MEM_HANDLE_TYPE_FABRIC : CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
  return handle;
}

// The peer's context stays for good where this has succeeded, as those of devices do.
void CudaDevice::enable_peer_access(int peer) {
  constexpr auto kCall = "cuCtxEnablePeerAccess";
  if (peer == ordinal_) check(kCall, CUDA_ERROR_INVALID_DEVICE);
  const CudaContext::Current current(context_);
  CUdevice device = 0;
  check("cuDeviceGet", driver().device_get(&device, peer));
  CUcontext peers = nullptr;
  check("cuDevicePrimaryCtxRetain", driver().primary_context_retain(&peers, device));
  const CUresult result = driver().context_enable_peer(peers, 0);
  if (result == CUDA_SUCCESS) return;
  driver().primary_context_release(device);
  if (result != CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED) check(kCall, result);
}

// Portable: whichever context is current when it is used, or none.
void* CudaDevice::host_malloc(std::size_t bytes) {
  constexpr auto kCall = "cuMemHostAlloc";
  if (bytes == 0) check(kCall, CUDA_ERROR_INVALID_VALUE);  // CUDA may return a null pointer
  const CudaContext::Current current(context_);
  const RelaxedCapture relaxed;
  void* memory = nullptr;
  return lacks_memory(kCall, driver().host_alloc(&memory, bytes, CU_MEMHOSTALLOC_PORTABLE)) ? nullptr : memory;
}

void CudaDevice::host_free(void* memory) {
  constexpr auto kCall = "cuMemFreeHost";
  if (memory == nullptr) check(kCall, CUDA_ERROR_INVALID_VALUE);  // CUDA may do nothing
  const CudaContext::Current current(context_);
  const RelaxedCapture relaxed;
  check(kCall, driver().host_free(memory));
}

void CudaDevice::copy_to_host(void* to, Address from, std::size_t bytes) {
  const CudaContext::Current current(context_);
  check("cuMemcpyDtoH", driver().copy_to_host(to, from, bytes));
}

void CudaDevice::copy_from_host(Address to, const void* from, std::size_t bytes) {
  const CudaContext::Current current(context_);
  check("cuMemcpyHtoD", driver().copy_from_host(to, from, bytes));
}

void CudaDevice::fill(Address address, unsigned char value, std::size_t bytes, Stream stream) {
  constexpr auto kCall = "cuMemsetD8Async";
  if (bytes == 0) check(kCall, CUDA_ERROR_INVALID_VALUE);  // CUDA may do nothing
  const CudaContext::Current current(context_);
  check(kCall, driver().fill_async(address, value, bytes, stream));
}

IpcHandle CudaDevice::ipc_export(Address address) {
  const CudaContext::Current current(context_);
  CUipcMemHandle cuda{};
  check("cuIpcGetMemHandle", driver().ipc_get(&cuda, address));
  IpcHandle handle;
  static_assert(sizeof(cuda) == sizeof(handle.bytes));
  std::memcpy(handle.bytes, &cuda, sizeof(cuda));
  return handle;
}

Address CudaDevice::ipc_import(const IpcHandle& handle) {
  const CudaContext::Current current(context_);
  CUipcMemHandle cuda{};
  std::memcpy(&cuda, handle.bytes, sizeof(cuda));
  CUdeviceptr address = 0;
  check("cuIpcOpenMemHandle", driver().ipc_open(&address, cuda, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
  return static_cast<Address>(address);
}

void CudaDevice::ipc_close(Address address) {
  const CudaContext::Current current(context_);
  check("cuIpcCloseMemHandle", driver().ipc_close(address));
}

CACHALOT_END
