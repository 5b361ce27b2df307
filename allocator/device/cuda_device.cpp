#include "device/cuda_device.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <thread>

#include "cachalot/errors.h"
#include "device/cuda_codes.h"
#include "device/cuda_completion_words.h"
#include "device/cuda_driver.h"
#include "device/cuda_handle_form.h"

CACHALOT_BEGIN

namespace {

// The number of the calling thread's current context.
CUresult id_of_current_context(std::uint64_t& id) {
  unsigned long long number = 1;
  const bool has_ids = driver().context_get_id != nullptr;
  const CUresult result = has_ids ? driver().context_get_id(nullptr, &number) : CUDA_SUCCESS;
  id = number;
  return result;
}

}  // namespace

bool CudaContext::is_current() const {
  const std::uint64_t first = id();
  if (first == 0) return false;
  CUcontext current = nullptr;
  if (driver().context_get_current(&current) != CUDA_SUCCESS || current != handle_.load()) return false;
  std::uint64_t now = 0;
  return id_of_current_context(now) == CUDA_SUCCESS && now == first;
}

void CudaContext::push() {
  const CUresult result = driver().context_push(handle());
  if (result == CUDA_ERROR_INVALID_CONTEXT || result == CUDA_ERROR_CONTEXT_IS_DESTROYED) throw_reset();
  check("cuCtxPushCurrent", result);
  if (is_in_its_life()) return;
  pop();
  throw_reset();
}

void CudaContext::pop() {
  CUcontext popped = nullptr;
  driver().context_pop(&popped);
}

CUctx_st* CudaContext::handle() {
  if (CUcontext known = handle_.load(std::memory_order_acquire)) return known;
  const Lock lock(making_);
  if (CUcontext known = handle_.load(std::memory_order_relaxed)) return known;
  CUdevice device = 0;
  check("cuDeviceGet", driver().device_get(&device, ordinal_));
  CUcontext made = nullptr;
  check("cuDevicePrimaryCtxRetain", driver().primary_context_retain(&made, device));
  handle_.store(made, std::memory_order_release);
  return made;
}

// The first context that is asked about is the one: everything is made in it.
bool CudaContext::is_in_its_life() {
  std::uint64_t now = 0;
  if (id_of_current_context(now) != CUDA_SUCCESS) return false;
  std::uint64_t first = 0;
  return id_.compare_exchange_strong(first, now, std::memory_order_acq_rel) || first == now;
}

void CudaContext::throw_reset() const { throw DeviceReset(ordinal_); }

namespace {

// The simulated device gives codes by these numbers, which CUDA's runtime uses for the same failures.
#define CODE(name, number, driver_name) static_assert(static_cast<int>(CudaCode::name) == (driver_name));
#include "device/cuda_codes.inc"
#undef CODE

// A driver that is older than an attribute does not have what it is about.
bool has(CUdevice device, CUdevice_attribute attribute) {
  int value = 0;
  return driver().device_get_attribute(&value, attribute, device) == CUDA_SUCCESS && value != 0;
}

// Returns the forms of handles that the device claims. Not every driver refuses a kind of handle that it cannot export,
// so its attributes are asked. Both kinds may be asked for together: one handle, shared either way.
HandleForm claimed_form(CUdevice device) {
  HandleForm form;
  if (has(device, CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED)) form.kinds |= CU_MEM_HANDLE_TYPE_FABRIC;
  if (has(device, CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED)) {
    form.kinds |= CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  }
  form.rdma = has(device, CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED);
  return form;
}

// The unit of physical memory of the form, in bytes; 0 where the driver does not tell. Needs no context.
std::size_t granularity(int ordinal, HandleForm form) {
  const CUmemAllocationProp properties = allocation_properties(ordinal, form);
  std::size_t bytes = 0;
  const CUresult result = driver().get_granularity(&bytes, &properties, CU_MEM_ALLOC_GRANULARITY_MINIMUM);
  return result == CUDA_SUCCESS ? bytes : 0;
}

DeviceProperties name_and_memory(CUdevice device) {
  char name[256] = "";
  check("cuDeviceGetName", driver().device_get_name(name, sizeof(name), device));
  DeviceProperties properties{.name = name, .calls_take_time = !driver().is_simulated};
  check("cuDeviceTotalMem", driver().device_total_memory(&properties.total_bytes, device));
  CUuuid uuid{};
  const auto get_uuid = driver().device_get_uuid;
  if (get_uuid != nullptr && get_uuid(&uuid, device) == CUDA_SUCCESS) {
    std::memcpy(properties.uuid.data(), uuid.bytes, properties.uuid.size());
  }
  return properties;
}

// Returns 0 without concurrent access: the driver then moves all managed memory to the device at each launch, where it
// must fit. An integrated GPU's memory is the host's.
std::size_t managed_bytes(CUdevice device, std::size_t total_bytes) {
  if (!has(device, CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY)) return 0;
  if (!has(device, CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS)) return 0;
  if (has(device, CU_DEVICE_ATTRIBUTE_INTEGRATED)) return total_bytes;
  const auto of_host =
      static_cast<std::size_t>(sysconf(_SC_PHYS_PAGES)) * static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  return total_bytes + of_host;
}

}  // namespace

CudaDevice::CudaDevice(int ordinal) : CudaDevice(ordinal, Config{}) {}

// Asks what needs no context: one is hundreds of MiB on each GPU of the machine, for a process that may use only one.
CudaDevice::CudaDevice(int ordinal, const Config& config) : ordinal_(ordinal), context_(ordinal) {
  CUdevice device = 0;
  check("cuDeviceGet", driver().device_get(&device, ordinal));
  properties_ = name_and_memory(device);
  properties_.integrated = has(device, CU_DEVICE_ATTRIBUTE_INTEGRATED);
  if (properties_.integrated) host_memory_ = HostMemory::of_machine(driver().is_simulated);
  if (has(device, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED)) query_virtual_memory(device);
  properties_.managed_bytes = managed_bytes(device, properties_.total_bytes);
  const bool can_hint = has(device, CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS);
  if (config.completion_hints && can_hint && driver().stream_write_value != nullptr) {
    words_ = std::make_unique<CudaCompletionWords>();
  }
}

void CudaDevice::query_virtual_memory(int device) {
  const HandleForm claimed = claimed_form(device);
  properties_.page_bytes = granularity(ordinal_, claimed);
  if (properties_.page_bytes == 0) properties_.page_bytes = granularity(ordinal_, {});
  properties_.virtual_memory = properties_.page_bytes != 0;
  if (properties_.virtual_memory) form_ = std::make_unique<CudaHandleForm>(ordinal_, claimed);
}

DeviceProperties CudaDevice::properties() const {
  DeviceProperties now = properties_;
  if (!form_) return now;
  const HandleForm form = form_->get();
  now.rdma_capable = form.rdma;
  now.shares_by_descriptor = (form.kinds & CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) != 0;
  now.shares_by_fabric = (form.kinds & CU_MEM_HANDLE_TYPE_FABRIC) != 0;
  return now;
}

// At the end of a process the driver may be gone already: nothing to give back then.
CudaDevice::~CudaDevice() {
  if (!words_ || !words_->has_memory()) return;
  try {
    const CudaContext::Current current(context_);
    words_->free_memory();
  } catch (const DeviceReset&) {
    words_->free_memory_after_reset();
  } catch (const CudaError&) {  // the error cannot be reported
  }
}

std::int64_t CudaDevice::clock_us() {
  using std::chrono::microseconds;
  return std::chrono::duration_cast<microseconds>(std::chrono::system_clock::now().time_since_epoch()).count();
}

int cuda_driver_version() {
  const CudaDriver* const found = find_driver();
  if (found == nullptr) return 0;
  int version = 0;
  const CUresult result = found->get_version(&version);
  if (result == CUDA_ERROR_STUB_LIBRARY) return 0;  // the toolkit's, to link with
  check("cuDriverGetVersion", result);
  return version;
}

std::vector<std::shared_ptr<Device>> cuda_devices() {
  const CudaDriver* const found = find_driver();
  if (found == nullptr) return {};
  const CUresult result = found->init(0);
  if (result == CUDA_ERROR_NO_DEVICE || result == CUDA_ERROR_STUB_LIBRARY) return {};
  check("cuInit", result);
  int count = 0;
  check("cuDeviceGetCount", found->device_get_count(&count));
  std::vector<std::shared_ptr<Device>> devices;
  devices.reserve(static_cast<std::size_t>(count));
  for (int ordinal = 0; ordinal < count; ++ordinal) devices.push_back(std::make_shared<CudaDevice>(ordinal));
  return devices;
}

// A GPU's memory: calls that allocate, map, copy and share it.

namespace {

// Calls a function of the driver in the device's context.
template <typename Function, typename... Arguments>
void call_in(CudaContext& context, const char* name, Function function, Arguments... arguments) {
  const CudaContext::Current current(context);
  check(name, function(arguments...));
}

// Returns whether a call that allocates found no memory; throws its other errors, among them those of earlier work on
// the device.
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
  return host_memory_ ? with_available_bytes(info, host_memory_->available_bytes()) : info;
}

bool CudaDevice::exceeds_host_memory(std::size_t bytes) const {
  if (!host_memory_) return false;
  const MemoryInfo unknown = {.free_bytes = properties_.total_bytes, .total_bytes = properties_.total_bytes};
  return bytes > with_available_bytes(unknown, host_memory_->available_bytes()).free_bytes;
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

std::optional<Address> CudaDevice::malloc_managed(std::size_t bytes) {
  constexpr auto kCall = "cuMemAllocManaged";
  if (properties_.managed_bytes == 0) check(kCall, CUDA_ERROR_NOT_SUPPORTED);
  const CudaContext::Current current(context_);
  const RelaxedCapture relaxed;
  CUdeviceptr address = 0;
  if (bytes > properties_.managed_bytes || exceeds_host_memory(bytes)) return std::nullopt;
  if (lacks_memory(kCall, driver().memory_alloc_managed(&address, bytes, CU_MEM_ATTACH_GLOBAL))) return std::nullopt;
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
  call_in(context_, "cuMemFreeAsync", driver().memory_free_async, address, stream);
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
  call_in(context_, "cuMemAddressFree", driver().address_free, address, bytes);
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
  call_in(context_, "cuMemRelease", driver().release, handle);
}

void CudaDevice::map(Address address, std::size_t bytes, MemoryHandle handle) {
  require_virtual_memory("cuMemMap");
  call_in(context_, "cuMemMap", driver().map, address, bytes, 0u, handle, 0u);
}

void CudaDevice::unmap(Address address, std::size_t bytes) {
  require_virtual_memory("cuMemUnmap");
  call_in(context_, "cuMemUnmap", driver().unmap, address, bytes);
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

// Opens the peer's memory. The peer's context stays permanently if this has succeeded, as those of devices do.
void CudaDevice::enable_peer_access(int peer) {
  constexpr auto kCall = "cuCtxEnablePeerAccess";
  if (peer == ordinal_) check(kCall, CUDA_ERROR_INVALID_DEVICE);
  const CudaContext::Current current(context_);
  CUdevice device = 0;
  check("cuDeviceGet", driver().device_get(&device, peer));
  CUcontext peers = nullptr;
  check("cuDevicePrimaryCtxRetain", driver().primary_context_retain(&peers, device));
  const CUresult result = driver().context_enable_peer(peers, 0);
  if (result != CUDA_SUCCESS) driver().primary_context_release(device);
  if (result != CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED) check(kCall, result);
  // Memory of cuMemAllocAsync is its own device's alone, until its pool is opened; a device without pools has none.
  CUmemoryPool pool = nullptr;
  if (driver().pool_set_access == nullptr || driver().device_get_pool(&pool, device) != CUDA_SUCCESS) return;
  const CUmemAccessDesc access = access_of(ordinal_);
  check("cuMemPoolSetAccess", driver().pool_set_access(pool, &access, 1));
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
  call_in(context_, "cuMemcpyDtoH", driver().copy_to_host, to, from, bytes);
}

void CudaDevice::copy_from_host(Address to, const void* from, std::size_t bytes) {
  call_in(context_, "cuMemcpyHtoD", driver().copy_from_host, to, from, bytes);
}

void CudaDevice::fill(Address address, unsigned char value, std::size_t bytes, Stream stream) {
  constexpr auto kCall = "cuMemsetD8Async";
  if (bytes == 0) check(kCall, CUDA_ERROR_INVALID_VALUE);  // CUDA may do nothing
  call_in(context_, kCall, driver().fill_async, address, value, bytes, stream);
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

void CudaDevice::ipc_close(Address address) { call_in(context_, "cuIpcCloseMemHandle", driver().ipc_close, address); }

// A GPU's work: calls of streams, events and captures.

namespace {

bool is_capturing(Stream stream, cuuint64_t& id) {
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  const CUresult result = driver().stream_get_capture_info(stream, &status, &id);
  // The legacy default stream, while another captures.
  if (result == CUDA_ERROR_STREAM_CAPTURE_IMPLICIT) return false;
  check("cuStreamGetCaptureInfo", result);
  return status != CU_STREAM_CAPTURE_STATUS_NONE;
}

// Null, cudaStreamLegacy and cudaStreamPerThread.
bool is_named_by_context(Stream stream) {
  return stream == nullptr || stream == CU_STREAM_LEGACY || stream == CU_STREAM_PER_THREAD;
}

// Returns the stream's context if it is not the current one; null for a stream of the current context, and for one that
// has ended.
CUcontext other_context_of(Stream stream) {
  CUcontext current = nullptr;
  CUcontext owner = nullptr;
  check("cuCtxGetCurrent", driver().context_get_current(&current));
  if (driver().stream_get_context(stream, &owner) != CUDA_SUCCESS || owner == current) return nullptr;
  return owner;
}

template <typename Calls>
void in_context(CUcontext context, Calls&& calls) {
  check("cuCtxPushCurrent", driver().context_push(context));
  struct Pop {
    ~Pop() {
      CUcontext popped = nullptr;
      driver().context_pop(&popped);
    }
  } const pop;
  calls();
}

// A stream of the current context. Work queued on it is done after it was destroyed, too.
class TemporaryStream {
 public:
  TemporaryStream() { check("cuStreamCreate", driver().stream_create(&stream_, CU_STREAM_NON_BLOCKING)); }
  ~TemporaryStream() { driver().stream_destroy(stream_); }
  TemporaryStream(const TemporaryStream&) = delete;
  TemporaryStream& operator=(const TemporaryStream&) = delete;

  CUstream get() const { return stream_; }

 private:
  CUstream stream_ = nullptr;
};

// An event of any context. Waits for it that are queued are kept after it was destroyed, too.
class TemporaryEvent {
 public:
  explicit TemporaryEvent(CUcontext context) : context_(context) {
    in_context(context_, [&] { check("cuEventCreate", driver().event_create(&event_, CU_EVENT_DISABLE_TIMING)); });
  }
  ~TemporaryEvent() { driver().event_destroy(event_); }
  TemporaryEvent(const TemporaryEvent&) = delete;
  TemporaryEvent& operator=(const TemporaryEvent&) = delete;

  CUevent get() const { return event_; }
  void record(Stream stream) const {
    in_context(context_, [&] { check("cuEventRecord", driver().event_record(event_, stream)); });
  }

 private:
  CUcontext context_;
  CUevent event_ = nullptr;
};

}  // namespace

// Addresses tell CUDA the kind.
void CudaDevice::copy(CopyKind /*kind*/, Address to, Address from, std::size_t bytes, Stream stream) {
  constexpr auto kCall = "cuMemcpyAsync";
  if (bytes == 0) check(kCall, CUDA_ERROR_INVALID_VALUE);  // CUDA may do nothing
  call_in(context_, kCall, driver().copy_async, to, from, bytes, stream);
}

// A stream may be of another context of this device.
bool CudaDevice::has_stream(Stream stream) {
  if (is_named_by_context(stream)) return true;
  const CudaContext::Current current(context_);
  CUcontext owner = nullptr;
  check("cuStreamGetCtx", driver().stream_get_context(stream, &owner));
  CUdevice device = 0;
  in_context(owner, [&] { check("cuCtxGetDevice", driver().context_get_device(&device)); });
  return device == ordinal_;
}

Stream CudaDevice::new_stream() {
  const CudaContext::Current current(context_);
  const RelaxedCapture relaxed;
  CUstream stream = nullptr;
  check("cuStreamCreate", driver().stream_create(&stream, CU_STREAM_NON_BLOCKING));
  return stream;
}

void CudaDevice::stream_destroy(Stream stream) {
  constexpr auto kCall = "cuStreamDestroy";
  if (is_named_by_context(stream)) check(kCall, CUDA_ERROR_INVALID_HANDLE);
  const CudaContext::Current current(context_);
  const RelaxedCapture relaxed;
  check(kCall, driver().stream_destroy(stream));
}

Event CudaDevice::event_create() {
  const CudaContext::Current current(context_);
  const RelaxedCapture relaxed;
  CUevent event = nullptr;
  check("cuEventCreate", driver().event_create(&event, CU_EVENT_DISABLE_TIMING));
  return event;
}

void CudaDevice::event_destroy(Event event) { call_in(context_, "cuEventDestroy", driver().event_destroy, event); }

// The handles that name another stream in each context mean that of this one; a stream of the program tells without.
std::uint64_t CudaDevice::stream_id(Stream stream) {
  if (driver().stream_get_id == nullptr) return 0;
  unsigned long long id = 0;
  if (!is_named_by_context(stream) && driver().stream_get_id(stream, &id) == CUDA_SUCCESS) return id;
  const CudaContext::Current current(context_);
  check("cuStreamGetId", driver().stream_get_id(stream, &id));
  return id;
}

void CudaDevice::event_record(Event event, Stream stream) {
  constexpr auto kCall = "cuEventRecord";
  const CudaContext::Current current(context_);
  const CUresult result = driver().event_record(event, stream);
  // The stream is of another context, or has ended.
  if (result == CUDA_ERROR_INVALID_HANDLE) {
    if (CUcontext owner = other_context_of(stream)) return record_across_contexts(event, stream, owner);
  }
  check(kCall, result);
  cuuint64_t capture = 0;
  if (words_ && !is_capturing(stream, capture)) words_->advance(stream);
}

// CUDA records an event on streams of the event's own context alone. So a stream of this device waits for an event of
// the other context, and has our event behind that.
void CudaDevice::record_across_contexts(Event event, Stream stream, CUctx_st* owner) {
  cuuint64_t capture = 0;
  if (is_capturing(stream, capture)) check("cuEventRecord", CUDA_ERROR_STREAM_CAPTURE_ISOLATION);
  if (words_) words_->give_up(stream);  // its word would show the stream's work done before our event is done
  const RelaxedCapture relaxed;
  const TemporaryStream bridge;
  const TemporaryEvent theirs(owner);
  theirs.record(stream);
  check("cuStreamWaitEvent", driver().stream_wait_event(bridge.get(), theirs.get(), CU_EVENT_WAIT_DEFAULT));
  check("cuEventRecord", driver().event_record(event, bridge.get()));
}

// Events that were not recorded in a capture may be asked while others capture, in relaxed mode alone: CUDA else spoils
// the captures of all threads that capture in global mode.
bool CudaDevice::event_query(Event event) {
  const CudaContext::Current current(context_);
  const RelaxedCapture relaxed;
  const CUresult result = driver().event_query(event);
  if (result == CUDA_ERROR_NOT_READY) return false;
  check("cuEventQuery", result);
  return true;
}

void CudaDevice::event_synchronize(Event event) {
  call_in(context_, "cuEventSynchronize", driver().event_synchronize, event);
}

// CUDA waits for single events alone. Work that is longer than the looks is waited for in the order of the events.
std::size_t CudaDevice::event_synchronize_any(const std::vector<Event>& events) {
  constexpr auto kFirstPause = std::chrono::microseconds(5);
  constexpr auto kLastPause = std::chrono::milliseconds(5);
  for (std::chrono::microseconds pause = kFirstPause; events.size() > 1 && pause < kLastPause; pause += pause / 4) {
    const auto done = std::find_if(events.begin(), events.end(), [&](Event event) { return event_query(event); });
    if (done != events.end()) return static_cast<std::size_t>(done - events.begin());
    std::this_thread::sleep_for(pause);
  }
  event_synchronize(events.front());
  return 0;
}

std::optional<std::uint64_t> CudaDevice::completion_hint(Stream stream) {
  return words_ ? words_->read(stream) : std::nullopt;
}

void CudaDevice::stream_wait(Stream stream, Event event) {
  call_in(context_, "cuStreamWaitEvent", driver().stream_wait_event, stream, event, CU_EVENT_WAIT_DEFAULT);
}

CaptureStatus CudaDevice::capture_status(Stream stream) {
  const CudaContext::Current current(context_);
  cuuint64_t id = 0;
  const bool capturing = is_capturing(stream, id);
  return {.capturing = capturing, .id = capturing ? id : 0};
}

void CudaDevice::synchronize() { call_in(context_, "cuCtxSynchronize", driver().context_synchronize); }

CACHALOT_END
