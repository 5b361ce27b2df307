#include "device/cuda_device.h"

#include <chrono>
#include <cstring>
#include <vector>

#include "cachalot/errors.h"
#include "device/cuda_codes.h"
#include "device/cuda_completion_words.h"
#include "device/cuda_driver.h"
#include "device/cuda_handle_form.h"
#include "device/cuda_memory_form.h"

CACHALOT_BEGIN

namespace {

// The simulated device gives codes by these numbers, which CUDA's runtime uses for the same failures.
static_assert(static_cast<int>(CudaCode::invalid_value) == CUDA_ERROR_INVALID_VALUE);
static_assert(static_cast<int>(CudaCode::memory_allocation) == CUDA_ERROR_OUT_OF_MEMORY);
static_assert(static_cast<int>(CudaCode::invalid_device) == CUDA_ERROR_INVALID_DEVICE);
static_assert(static_cast<int>(CudaCode::device_uninitialized) == CUDA_ERROR_INVALID_CONTEXT);
static_assert(static_cast<int>(CudaCode::invalid_resource_handle) == CUDA_ERROR_INVALID_HANDLE);
static_assert(static_cast<int>(CudaCode::illegal_state) == CUDA_ERROR_ILLEGAL_STATE);
static_assert(static_cast<int>(CudaCode::illegal_address) == CUDA_ERROR_ILLEGAL_ADDRESS);
static_assert(static_cast<int>(CudaCode::context_is_destroyed) == CUDA_ERROR_CONTEXT_IS_DESTROYED);
static_assert(static_cast<int>(CudaCode::not_supported) == CUDA_ERROR_NOT_SUPPORTED);
static_assert(static_cast<int>(CudaCode::capture_unsupported) == CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
static_assert(static_cast<int>(CudaCode::capture_invalidated) == CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
static_assert(static_cast<int>(CudaCode::capture_merge) == CUDA_ERROR_STREAM_CAPTURE_MERGE);
static_assert(static_cast<int>(CudaCode::capture_unmatched) == CUDA_ERROR_STREAM_CAPTURE_UNMATCHED);
static_assert(static_cast<int>(CudaCode::capture_isolation) == CUDA_ERROR_STREAM_CAPTURE_ISOLATION);
static_assert(static_cast<int>(CudaCode::captured_event) == CUDA_ERROR_CAPTURED_EVENT);
static_assert(static_cast<int>(CudaCode::unknown) == CUDA_ERROR_UNKNOWN);

// A driver that is older than an attribute does not have what it is about.
bool has(CUdevice device, CUdevice_attribute attribute) {
  int value = 0;
  return driver().device_get_attribute(&value, attribute, device) == CUDA_SUCCESS && value != 0;
}

// What the device says that its handles can be. Not every driver refuses a kind of handle that it cannot export, so its
// attributes are asked. Both kinds may be asked for together: one handle, shared either way.
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
  DeviceProperties properties{.name = name};
  check("cuDeviceTotalMem", driver().device_total_memory(&properties.total_bytes, device));
  CUuuid uuid{};
  const auto get_uuid = driver().device_get_uuid;
  if (get_uuid != nullptr && get_uuid(&uuid, device) == CUDA_SUCCESS) {
    std::memcpy(properties.uuid.data(), uuid.bytes, properties.uuid.size());
  }
  return properties;
}

}  // namespace

CudaDevice::CudaDevice(int ordinal) : CudaDevice(ordinal, Config{}) {}

// Asks what needs no context: one is hundreds of MiB on each GPU of the machine, for a process that may use only one.
CudaDevice::CudaDevice(int ordinal, const Config& config) : ordinal_(ordinal), context_(ordinal) {
  CUdevice device = 0;
  check("cuDeviceGet", driver().device_get(&device, ordinal));
  properties_ = name_and_memory(device);
  if (has(device, CU_DEVICE_ATTRIBUTE_INTEGRATED)) host_memory_file_ = config.host_memory_file;
  if (has(device, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED)) query_virtual_memory(device);
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
  } catch (const CudaError&) {  // there is nobody left to tell
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

CACHALOT_END
