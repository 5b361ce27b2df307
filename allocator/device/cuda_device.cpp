#include "device/cuda_device.h"

#include <cuda.h>
#include <cudaTypedefs.h>
#include <cuda_runtime_api.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/mutex.h"
#include "cachalot/errors.h"
#include "device/addresses.h"
#include "device/cuda_calls.h"

namespace cachalot {
namespace {

// The driver's functions, found at run time: the library links only the runtime, and runs where there is no driver.
struct Driver {
  PFN_cuGetErrorName_v6000 get_error_name = nullptr;
  PFN_cuDeviceGetAttribute_v2000 device_get_attribute = nullptr;
  PFN_cuEventQuery_v2000 event_query = nullptr;
  PFN_cuCtxGetId_v12000 context_id = nullptr;  // null: a driver of before CUDA 12
  PFN_cuStreamWriteValue64_v11070 stream_write_value = nullptr;
  PFN_cuMemGetAllocationGranularity_v10020 get_granularity = nullptr;
  PFN_cuMemAddressReserve_v10020 address_reserve = nullptr;
  PFN_cuMemAddressFree_v10020 address_free = nullptr;
  PFN_cuMemCreate_v10020 create = nullptr;
  PFN_cuMemRelease_v10020 release = nullptr;
  PFN_cuMemMap_v10020 map = nullptr;
  PFN_cuMemUnmap_v10020 unmap = nullptr;
  PFN_cuMemSetAccess_v10020 set_access = nullptr;
  PFN_cuMemExportToShareableHandle_v10020 export_handle = nullptr;
  PFN_cuMemImportFromShareableHandle_v10020 import_handle = nullptr;
  PFN_cuMemGetAllocationPropertiesFromHandle_v10020 get_properties = nullptr;
};

using cachalot::check;  // of the runtime; the driver's is below

// `version`: of CUDA, the one in whose form (the _vN of its type) the function is wanted.
template <typename Function>
void find(const char* name, unsigned int version, Function& function) {
  void* found = nullptr;
  cudaDriverEntryPointQueryResult result{};
  check("cudaGetDriverEntryPointByVersion",
        cudaGetDriverEntryPointByVersion(name, &found, version, cudaEnableLegacyStream, &result));
  if (result != cudaDriverEntryPointSuccess || !found) {
    throw CudaError("cudaGetDriverEntryPointByVersion", static_cast<int>(cudaErrorNotSupported),
                    "the driver has no " + std::string(name) + " of CUDA " + std::to_string(version));
  }
  function = reinterpret_cast<Function>(found);
}

// The same, but null where there is none.
template <typename Function>
void find_if_any(const char* name, unsigned int version, Function& function) {
  try {
    find(name, version, function);
  } catch (const CudaError&) {
  }
}

Driver load_driver() {
  Driver driver;
  find("cuGetErrorName", 6000, driver.get_error_name);
  find("cuDeviceGetAttribute", 2000, driver.device_get_attribute);
  find("cuEventQuery", 2000, driver.event_query);
  find_if_any("cuCtxGetId", 12000, driver.context_id);
  find("cuStreamWriteValue64", 11070, driver.stream_write_value);
  find("cuMemGetAllocationGranularity", 10020, driver.get_granularity);
  find("cuMemAddressReserve", 10020, driver.address_reserve);
  find("cuMemAddressFree", 10020, driver.address_free);
  find("cuMemCreate", 10020, driver.create);
  find("cuMemRelease", 10020, driver.release);
  find("cuMemMap", 10020, driver.map);
  find("cuMemUnmap", 10020, driver.unmap);
  find("cuMemSetAccess", 10020, driver.set_access);
  find("cuMemExportToShareableHandle", 10020, driver.export_handle);
  find("cuMemImportFromShareableHandle", 10020, driver.import_handle);
  find("cuMemGetAllocationPropertiesFromHandle", 10020, driver.get_properties);
  return driver;
}

const Driver& driver() {
  static const Driver instance = load_driver();
  return instance;
}

void check(const char* call, CUresult result) {
  if (result == CUDA_SUCCESS) return;
  const char* name = nullptr;
  if (driver().get_error_name(result, &name) != CUDA_SUCCESS || !name) name = "unknown";
  throw CudaError(call, static_cast<int>(result), name);
}

// Lets this thread allocate while some stream captures: the memory is the caller's business, not the graph's.
class RelaxedCapture {
 public:
  RelaxedCapture() { check("cudaThreadExchangeStreamCaptureMode", cudaThreadExchangeStreamCaptureMode(&mode_)); }
  ~RelaxedCapture() { cudaThreadExchangeStreamCaptureMode(&mode_); }
  RelaxedCapture(const RelaxedCapture&) = delete;
  RelaxedCapture& operator=(const RelaxedCapture&) = delete;

 private:
  cudaStreamCaptureMode mode_ = cudaStreamCaptureModeRelaxed;
};

// Whether a call that allocates found no memory; throws its other errors. `earlier` is the runtime's last error before it:
// that must not be lost when the out-of-memory error is cleared, and is thrown.
bool lacks_memory(const char* call, cudaError_t earlier, cudaError_t error) {
  if (error == cudaSuccess) return false;
  if (error != cudaErrorMemoryAllocation) throw_runtime_error(call, error);
  if (earlier != cudaSuccess && earlier != cudaErrorMemoryAllocation) {
    throw_runtime_error((std::string("an earlier call, found in ") + call).c_str(), earlier);
  }
  const cudaError_t cleared = cudaGetLastError();
  if (cleared != cudaSuccess && cleared != cudaErrorMemoryAllocation) throw_runtime_error(call, cleared);
  return true;
}

bool has_attribute(int ordinal, CUdevice_attribute attribute) {
  int value = 0;
  check("cuDeviceGetAttribute", driver().device_get_attribute(&value, attribute, ordinal));
  return value != 0;
}

// The best way of sharing that the device has: by fabric, by file, by none. Not every driver refuses a kind of handle that
// it cannot export, so its attributes are asked; one older than an attribute has not what it is about.
CUmemAllocationHandleType shareable_kind(int ordinal) {
  const auto has = [&](CUdevice_attribute attribute) {
    int value = 0;
    return driver().device_get_attribute(&value, attribute, ordinal) == CUDA_SUCCESS && value != 0;
  };
  if (has(CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED)) return CU_MEM_HANDLE_TYPE_FABRIC;
  if (!has(CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED)) return CU_MEM_HANDLE_TYPE_NONE;
  return CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
}

CUmemAllocationProp allocation_properties(int ordinal, bool rdma_capable, CUmemAllocationHandleType kind) {
  CUmemAllocationProp properties{};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  properties.location.id = ordinal;
  properties.requestedHandleTypes = kind;
  properties.allocFlags.gpuDirectRDMACapable = rdma_capable ? 1 : 0;
  return properties;
}

DeviceProperties query_properties(int ordinal) {
  cudaDeviceProp cuda{};
  check("cudaGetDeviceProperties", cudaGetDeviceProperties(&cuda, ordinal));
  DeviceProperties properties{.name = cuda.name, .total_bytes = cuda.totalGlobalMem};
  properties.virtual_memory = has_attribute(ordinal, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED);
  if (!properties.virtual_memory) return properties;
  properties.rdma_capable = has_attribute(ordinal, CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED);
  const CUmemAllocationProp allocation =
      allocation_properties(ordinal, properties.rdma_capable, shareable_kind(ordinal));
  const auto ask = [&] {
    return driver().get_granularity(&properties.page_bytes, &allocation, CU_MEM_ALLOC_GRANULARITY_MINIMUM);
  };
  if (ask() == CUDA_SUCCESS) return properties;
  const CurrentDevice current(ordinal);  // should a driver want a context for this
  check("cuMemGetAllocationGranularity", ask());
  return properties;
}

bool is_capturing(cudaStream_t stream, unsigned long long* id) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  const cudaError_t error = cudaStreamGetCaptureInfo(stream, &status, id);
  if (error == cudaErrorStreamCaptureImplicit) {  // the legacy default stream, while another captures
    cudaGetLastError();
    return false;
  }
  check("cudaStreamGetCaptureInfo", error);
  return status != cudaStreamCaptureStatusNone;
}

}  // namespace

// The device is current, and the context of its own is the one that everything was made in: cudaDeviceReset leaves none of
// it, and what the runtime or the driver would do with old handles is theirs to choose.
class CudaDevice::OwnContext {
 public:
  explicit OwnContext(CudaDevice& device) : current_(device.ordinal_) {
    if (driver().context_id == nullptr) return;
    const std::uint64_t now = id_of_current(device.ordinal_);
    std::uint64_t first = 0;
    if (device.context_.compare_exchange_strong(first, now) || first == now) return;
    throw CudaError("cuCtxGetId", static_cast<int>(cudaErrorContextIsDestroyed),
                    "device " + std::to_string(device.ordinal_) +
                        " was reset (cudaDeviceReset) since its allocator began to use it: all its memory, streams and "
                        "events are gone; make a new allocator");
  }

 private:
  // After a reset the thread may still have the old context, or none.
  static std::uint64_t id_of_current(int ordinal) {
    unsigned long long id = 0;
    if (driver().context_id(nullptr, &id) == CUDA_SUCCESS) return id;
    check("cudaSetDevice", cudaSetDevice(ordinal));
    check("cuCtxGetId", driver().context_id(nullptr, &id));
    return id;
  }

  const CurrentDevice current_;
};

// One pinned word a stream, which the stream itself sets to a rising number behind each event.
// A word once made stays until the device object dies, and the memory is ours: it can be read after a reset of the device,
// which takes what cudaHostAlloc gave. Thread-safe.
class CudaDevice::CompletionWords {
 public:
  CompletionWords() = default;
  ~CompletionWords() {
    if (slabs_.empty()) return;
    if (cudaDeviceSynchronize() != cudaSuccess) return;  // a write may still be queued: better leak than overwrite
    for (void* slab : slabs_) {
      if (cudaHostUnregister(slab) != cudaSuccess) cudaGetLastError();  // the device was reset
      std::free(slab);
    }
  }
  CompletionWords(const CompletionWords&) = delete;
  CompletionWords& operator=(const CompletionWords&) = delete;

  // Queues the next number. If that fails the stream has no hints from now on.
  void advance(cudaStream_t stream) {
    Word& word = word_of(stream);
    const std::lock_guard lock(word.writing);  // numbers must rise in the order of the stream
    if (!word.usable) return;
    const CUresult result =
        driver().stream_write_value(stream, word.device_address, ++word.written, CU_STREAM_WRITE_VALUE_DEFAULT);
    if (result != CUDA_SUCCESS) word.usable = false;
  }

  // 0 for a stream on which nothing was recorded yet.
  std::optional<std::uint64_t> read(cudaStream_t stream) {
    const Word* word = known_word(stream);
    if (!word) return 0;
    if (!word->usable) return std::nullopt;
    return std::atomic_ref(*word->host_address).load(std::memory_order_acquire);
  }

 private:
  static constexpr std::size_t kWordStride = 64;  // a cache line each
  static constexpr std::size_t kSlabBytes = 4096;

  struct Word {
    std::mutex writing;
    std::atomic<bool> usable{false};
    std::uint64_t written = 0;
    std::uint64_t* host_address = nullptr;
    CUdeviceptr device_address = 0;
  };

  Word* known_word(cudaStream_t stream) {
    const Lock lock(mutex_);
    const auto at = words_.find(stream);
    return at == words_.end() ? nullptr : at->second.get();
  }

  Word& word_of(cudaStream_t stream) {
    if (Word* word = known_word(stream)) return *word;
    const std::lock_guard making(making_);
    if (Word* word = known_word(stream)) return *word;
    auto made = make_word();
    const Lock lock(mutex_);
    return *words_.emplace(stream, std::move(made)).first->second;
  }

  // Called with making_ held. A word without memory is not usable.
  std::unique_ptr<Word> make_word() {
    auto word = std::make_unique<Word>();
    if (slab_left_ == 0 && !add_slab()) return word;
    const std::size_t offset = kSlabBytes - slab_left_;
    void* host = static_cast<char*>(slabs_.back()) + offset;
    void* device = nullptr;
    if (cudaHostGetDevicePointer(&device, host, 0) != cudaSuccess) {
      cudaGetLastError();
      return word;
    }
    slab_left_ -= kWordStride;
    word->host_address = static_cast<std::uint64_t*>(host);
    word->device_address = reinterpret_cast<CUdeviceptr>(device);
    word->usable = true;
    return word;
  }

  bool add_slab() {
    const RelaxedCapture relaxed;
    void* const slab = std::aligned_alloc(kSlabBytes, kSlabBytes);
    if (slab == nullptr) return false;
    std::memset(slab, 0, kSlabBytes);
    if (cudaHostRegister(slab, kSlabBytes, cudaHostRegisterMapped | cudaHostRegisterPortable) != cudaSuccess) {
      cudaGetLastError();
      std::free(slab);
      return false;
    }
    slabs_.push_back(slab);
    slab_left_ = kSlabBytes;
    return true;
  }

  Mutex mutex_;  // of words_, held for a look-up
  std::unordered_map<cudaStream_t, std::unique_ptr<Word>> words_ CACHALOT_GUARDED_BY(mutex_);
  std::mutex making_;  // of the slabs, held across CUDA calls
  std::vector<void*> slabs_;
  std::size_t slab_left_ = 0;
};

CudaDevice::CudaDevice(int ordinal) : CudaDevice(ordinal, Config{}) {}

// Does not make the device current: that would create a context there, hundreds of MiB on each GPU of the machine, for a
// process that may use only one.
CudaDevice::CudaDevice(int ordinal, const Config& config) : ordinal_(ordinal) {
  properties_ = query_properties(ordinal_);
  if (properties_.virtual_memory) shareable_kind_ = shareable_kind(ordinal_);
  if (config.completion_hints && has_attribute(ordinal_, CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS)) {
    words_ = std::make_unique<CompletionWords>();
  }
}

// At the end of a process the runtime may be gone already: nothing to give back then.
CudaDevice::~CudaDevice() {
  if (!words_) return;
  try {
    const CurrentDevice current(ordinal_);
    words_.reset();
  } catch (const CudaError&) {
    words_.release();
  }
}

MemoryInfo CudaDevice::memory_info() {
  const CurrentDevice current(ordinal_);
  MemoryInfo info;
  check("cudaMemGetInfo", cudaMemGetInfo(&info.free_bytes, &info.total_bytes));
  return info;
}

std::optional<Address> CudaDevice::malloc(std::size_t bytes) {
  constexpr auto kCall = "cudaMalloc";
  if (bytes == 0) throw_runtime_error(kCall, cudaErrorInvalidValue);  // CUDA would return a null pointer
  const OwnContext context(*this);
  const RelaxedCapture relaxed;
  const cudaError_t earlier = cudaPeekAtLastError();
  void* pointer = nullptr;
  if (lacks_memory(kCall, earlier, cudaMalloc(&pointer, bytes))) return std::nullopt;
  return as_address(pointer);
}

void CudaDevice::free(Address address) {
  if (address == 0) throw_runtime_error("cudaFree", cudaErrorInvalidValue);  // CUDA would do nothing
  const OwnContext context(*this);
  check("cudaFree", cudaFree(as_pointer(address)));
}

void CudaDevice::require_virtual_memory(const char* call) const {
  if (!properties_.virtual_memory) check(call, CUDA_ERROR_NOT_SUPPORTED);
}

std::optional<Address> CudaDevice::reserve(std::size_t bytes) {
  constexpr auto kCall = "cuMemAddressReserve";
  require_virtual_memory(kCall);
  const OwnContext context(*this);
  CUdeviceptr address = 0;
  const CUresult result = driver().address_reserve(&address, bytes, 0, 0, 0);
  if (result == CUDA_ERROR_OUT_OF_MEMORY) return std::nullopt;
  check(kCall, result);
  return static_cast<Address>(address);
}

void CudaDevice::unreserve(Address address, std::size_t bytes) {
  require_virtual_memory("cuMemAddressFree");
  const OwnContext context(*this);
  check("cuMemAddressFree", driver().address_free(address, bytes));
}

// A device with a fabric may still forbid it to this process (no IMEX channel): files do then, as in PyTorch.
std::optional<MemoryHandle> CudaDevice::create(std::size_t bytes) {
  constexpr auto kCall = "cuMemCreate";
  require_virtual_memory(kCall);
  const OwnContext context(*this);
  CUmemGenericAllocationHandle handle = 0;
  const auto ask = [&](int kind) {
    const CUmemAllocationProp properties =
        allocation_properties(ordinal_, properties_.rdma_capable, static_cast<CUmemAllocationHandleType>(kind));
    return driver().create(&handle, bytes, &properties, 0);
  };
  CUresult result = ask(shareable_kind_);
  if (result != CUDA_SUCCESS && result != CUDA_ERROR_OUT_OF_MEMORY && shareable_kind_ == CU_MEM_HANDLE_TYPE_FABRIC) {
    result = ask(CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
    if (result == CUDA_SUCCESS) shareable_kind_ = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  }
  if (result == CUDA_ERROR_OUT_OF_MEMORY) return std::nullopt;
  check(kCall, result);
  return handle;
}

void CudaDevice::release(MemoryHandle handle) {
  require_virtual_memory("cuMemRelease");
  const OwnContext context(*this);
  check("cuMemRelease", driver().release(handle));
}

void CudaDevice::map(Address address, std::size_t bytes, MemoryHandle handle) {
  require_virtual_memory("cuMemMap");
  const OwnContext context(*this);
  check("cuMemMap", driver().map(address, bytes, 0, handle, 0));
}

void CudaDevice::unmap(Address address, std::size_t bytes) {
  require_virtual_memory("cuMemUnmap");
  const OwnContext context(*this);
  check("cuMemUnmap", driver().unmap(address, bytes));
}

void CudaDevice::set_access(Address address, std::size_t bytes, const std::vector<int>& peers) {
  require_virtual_memory("cuMemSetAccess");
  const OwnContext context(*this);
  CUmemAccessDesc access{};
  access.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  access.location.id = ordinal_;
  access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  if (peers.empty()) return check("cuMemSetAccess", driver().set_access(address, bytes, &access, 1));
  std::vector<CUmemAccessDesc> all(1 + peers.size(), access);
  for (std::size_t i = 0; i < peers.size(); ++i) all[1 + i].location.id = peers[i];
  check("cuMemSetAccess", driver().set_access(address, bytes, all.data(), all.size()));
}

ShareableHandle CudaDevice::export_handle(MemoryHandle handle) {
  constexpr auto kCall = "cuMemExportToShareableHandle";
  require_virtual_memory(kCall);
  const OwnContext context(*this);
  CUmemAllocationProp properties{};
  check("cuMemGetAllocationPropertiesFromHandle", driver().get_properties(&properties, handle));
  ShareableHandle shared;
  if ((properties.requestedHandleTypes & CU_MEM_HANDLE_TYPE_FABRIC) != 0) {
    static_assert(sizeof(CUmemFabricHandle) == sizeof(shared.fabric));
    shared.kind = ShareableHandle::Kind::fabric;
    check(kCall, driver().export_handle(shared.fabric.data(), handle, CU_MEM_HANDLE_TYPE_FABRIC, 0));
  } else {
    check(kCall, driver().export_handle(&shared.descriptor, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
  }
  return shared;
}

MemoryHandle CudaDevice::import_handle(const ShareableHandle& shared) {
  constexpr auto kCall = "cuMemImportFromShareableHandle";
  require_virtual_memory(kCall);
  const OwnContext context(*this);
  const bool is_fabric = shared.kind == ShareableHandle::Kind::fabric;
  auto fabric = shared.fabric;
  void* const what = is_fabric ? static_cast<void*>(fabric.data())
                               : reinterpret_cast<void*>(static_cast<std::intptr_t>(shared.descriptor));
  CUmemGenericAllocationHandle handle = 0;
  check(kCall, driver().import_handle(
                   &handle, what, is_fabric ? CU_MEM_HANDLE_TYPE_FABRIC : CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
  return handle;
}

void CudaDevice::enable_peer_access(int peer) {
  const OwnContext context(*this);
  const cudaError_t error = cudaDeviceEnablePeerAccess(peer, 0);
  if (error == cudaErrorPeerAccessAlreadyEnabled) {
    cudaGetLastError();
    return;
  }
  check("cudaDeviceEnablePeerAccess", error);
}

// Portable: whichever device is current when it is used, or none.
void* CudaDevice::host_malloc(std::size_t bytes) {
  constexpr auto kCall = "cudaHostAlloc";
  if (bytes == 0) throw_runtime_error(kCall, cudaErrorInvalidValue);  // CUDA would return a null pointer
  const OwnContext context(*this);
  const RelaxedCapture relaxed;
  const cudaError_t earlier = cudaPeekAtLastError();
  void* memory = nullptr;
  return lacks_memory(kCall, earlier, cudaHostAlloc(&memory, bytes, cudaHostAllocPortable)) ? nullptr : memory;
}

void CudaDevice::host_free(void* memory) {
  if (memory == nullptr) throw_runtime_error("cudaFreeHost", cudaErrorInvalidValue);  // CUDA would do nothing
  const OwnContext context(*this);
  check("cudaFreeHost", cudaFreeHost(memory));
}

void CudaDevice::copy_to_host(void* to, Address from, std::size_t bytes) {
  const OwnContext context(*this);
  check("cudaMemcpy", cudaMemcpy(to, as_pointer(from), bytes, cudaMemcpyDeviceToHost));
}

void CudaDevice::copy_from_host(Address to, const void* from, std::size_t bytes) {
  const OwnContext context(*this);
  check("cudaMemcpy", cudaMemcpy(as_pointer(to), from, bytes, cudaMemcpyHostToDevice));
}

void CudaDevice::fill(Address address, unsigned char value, std::size_t bytes, Stream stream) {
  constexpr auto kCall = "cudaMemsetAsync";
  if (bytes == 0) throw_runtime_error(kCall, cudaErrorInvalidValue);  // CUDA would do nothing
  const OwnContext context(*this);
  check(kCall, cudaMemsetAsync(as_pointer(address), value, bytes, stream));
}

Event CudaDevice::event_create() {
  const OwnContext context(*this);
  cudaEvent_t event = nullptr;
  check("cudaEventCreateWithFlags", cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
  return event;
}

void CudaDevice::event_destroy(Event event) {
  const OwnContext context(*this);
  check("cudaEventDestroy", cudaEventDestroy(event));
}

void CudaDevice::event_record(Event event, Stream stream) {
  const OwnContext context(*this);
  check("cudaEventRecord", cudaEventRecord(event, stream));
  unsigned long long capture = 0;
  if (words_ && !is_capturing(stream, &capture)) words_->advance(stream);
}

// The driver's function, because the runtime's would leave "not ready" as the last error, over an earlier one.
bool CudaDevice::event_query(Event event) {
  const OwnContext context(*this);
  const CUresult result = driver().event_query(event);
  if (result == CUDA_ERROR_NOT_READY) return false;
  check("cuEventQuery", result);
  return true;
}

void CudaDevice::event_synchronize(Event event) {
  const OwnContext context(*this);
  check("cudaEventSynchronize", cudaEventSynchronize(event));
}

std::optional<std::uint64_t> CudaDevice::completion_hint(Stream stream) {
  return words_ ? words_->read(stream) : std::nullopt;
}

void CudaDevice::stream_wait(Stream stream, Event event) {
  const OwnContext context(*this);
  check("cudaStreamWaitEvent", cudaStreamWaitEvent(stream, event, cudaEventWaitDefault));
}

CaptureStatus CudaDevice::capture_status(Stream stream) {
  const OwnContext context(*this);
  unsigned long long id = 0;
  const bool capturing = is_capturing(stream, &id);
  return {.capturing = capturing, .id = capturing ? id : 0};
}

void CudaDevice::synchronize() {
  const OwnContext context(*this);
  check("cudaDeviceSynchronize", cudaDeviceSynchronize());
}

IpcHandle CudaDevice::ipc_export(Address address) {
  const OwnContext context(*this);
  cudaIpcMemHandle_t cuda{};
  check("cudaIpcGetMemHandle", cudaIpcGetMemHandle(&cuda, as_pointer(address)));
  IpcHandle handle;
  static_assert(sizeof(cuda) == sizeof(handle.bytes));
  std::memcpy(handle.bytes, &cuda, sizeof(cuda));
  return handle;
}

Address CudaDevice::ipc_import(const IpcHandle& handle) {
  const OwnContext context(*this);
  cudaIpcMemHandle_t cuda{};
  std::memcpy(&cuda, handle.bytes, sizeof(cuda));
  void* pointer = nullptr;
  check("cudaIpcOpenMemHandle", cudaIpcOpenMemHandle(&pointer, cuda, cudaIpcMemLazyEnablePeerAccess));
  return as_address(pointer);
}

void CudaDevice::ipc_close(Address address) {
  const OwnContext context(*this);
  check("cudaIpcCloseMemHandle", cudaIpcCloseMemHandle(as_pointer(address)));
}

std::int64_t CudaDevice::clock_us() {
  using std::chrono::microseconds;
  return std::chrono::duration_cast<microseconds>(std::chrono::system_clock::now().time_since_epoch()).count();
}

int cuda_driver_version() {
  int version = 0;
  check("cudaDriverGetVersion", cudaDriverGetVersion(&version));
  return version;
}

std::vector<std::shared_ptr<Device>> cuda_devices() {
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  const bool none = error == cudaErrorNoDevice || error == cudaErrorInsufficientDriver || error == cudaErrorStubLibrary;
  if (none)
    cudaGetLastError();
  else
    check("cudaGetDeviceCount", error);
  std::vector<std::shared_ptr<Device>> devices;
  for (int ordinal = 0; !none && ordinal < count; ++ordinal) devices.push_back(std::make_shared<CudaDevice>(ordinal));
  return devices;
}

}  // namespace cachalot
