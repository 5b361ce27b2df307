// The CUDA driver's functions that cachalot calls, found in libcuda.so.1 at run time. None of cachalot's libraries is
// linked with CUDA: each loads where there is no driver, and works beside whatever CUDA runtime its program has.
//
// The driver has no "last error", so a call of cachalot neither sees nor leaves one in the program's CUDA runtime.
#pragma once

#include <cuda.h>
#include <cudaTypedefs.h>

#include "cachalot/version.h"

CACHALOT_BEGIN

// The functions, each under the symbol of the very form that its type describes, for which the driver keeps that symbol
// permanently: cuda.h may call a newer form by the same name.
class CudaDriver {
  // A symbol of the driver as a function of any type.
  struct Symbol {
    void* address;
    template <typename Function>
    operator Function() const {  // NOLINT(google-explicit-constructor)
      return reinterpret_cast<Function>(address);
    }
  };
  // Throws CudaError where the driver does not have it.
  Symbol required(const char* name) const;
  // Null where the driver does not have it.
  Symbol optional(const char* name) const;

  void* const library_;

 public:
  // `library` is what dlopen gave for the driver. Throws CudaError where it lacks a function that is not optional: these
  // came with CUDA 11.0 and before.
  explicit CudaDriver(void* library) : library_(library) {}

  const PFN_cuGetErrorName_v6000 get_error_name = required("cuGetErrorName");
  const PFN_cuGetErrorString_v6000 get_error_string = required("cuGetErrorString");
  const PFN_cuInit_v2000 init = required("cuInit");
  const PFN_cuDriverGetVersion_v2020 get_version = required("cuDriverGetVersion");
  const bool is_simulated = optional("cachalot_sim_clock_ns").address != nullptr;  // only cachalot's simulator has that

  const PFN_cuDeviceGet_v2000 device_get = required("cuDeviceGet");
  const PFN_cuDeviceGetCount_v2000 device_get_count = required("cuDeviceGetCount");
  const PFN_cuDeviceGetName_v2000 device_get_name = required("cuDeviceGetName");
  const PFN_cuDeviceTotalMem_v3020 device_total_memory = required("cuDeviceTotalMem_v2");
  const PFN_cuDeviceGetUuid_v11040 device_get_uuid = optional("cuDeviceGetUuid_v2");  // since CUDA 11.4
  const PFN_cuDeviceGetAttribute_v2000 device_get_attribute = required("cuDeviceGetAttribute");

  const PFN_cuDevicePrimaryCtxRetain_v7000 primary_context_retain = required("cuDevicePrimaryCtxRetain");
  const PFN_cuDevicePrimaryCtxRelease_v11000 primary_context_release = required("cuDevicePrimaryCtxRelease_v2");
  const PFN_cuCtxGetCurrent_v4000 context_get_current = required("cuCtxGetCurrent");
  const PFN_cuCtxPushCurrent_v4000 context_push = required("cuCtxPushCurrent_v2");
  const PFN_cuCtxPopCurrent_v4000 context_pop = required("cuCtxPopCurrent_v2");
  const PFN_cuCtxGetDevice_v2000 context_get_device = required("cuCtxGetDevice");
  const PFN_cuCtxGetId_v12000 context_get_id = optional("cuCtxGetId");  // since CUDA 12.0
  const PFN_cuCtxSynchronize_v2000 context_synchronize = required("cuCtxSynchronize");
  const PFN_cuCtxEnablePeerAccess_v4000 context_enable_peer = required("cuCtxEnablePeerAccess");

  const PFN_cuMemGetInfo_v3020 memory_info = required("cuMemGetInfo_v2");
  const PFN_cuMemAlloc_v3020 memory_alloc = required("cuMemAlloc_v2");
  const PFN_cuMemAllocManaged_v6000 memory_alloc_managed = required("cuMemAllocManaged");
  const PFN_cuMemFree_v3020 memory_free = required("cuMemFree_v2");
  const PFN_cuMemAllocAsync_v11020 memory_alloc_async = optional("cuMemAllocAsync");  // since CUDA 11.2
  const PFN_cuMemFreeAsync_v11020 memory_free_async = optional("cuMemFreeAsync");
  const PFN_cuDeviceGetMemPool_v11020 device_get_pool = optional("cuDeviceGetMemPool");
  const PFN_cuMemPoolSetAccess_v11020 pool_set_access = optional("cuMemPoolSetAccess");
  const PFN_cuMemHostAlloc_v2020 host_alloc = required("cuMemHostAlloc");
  const PFN_cuMemFreeHost_v2000 host_free = required("cuMemFreeHost");
  const PFN_cuMemHostRegister_v6050 host_register = required("cuMemHostRegister_v2");
  const PFN_cuMemHostUnregister_v4000 host_unregister = required("cuMemHostUnregister");
  const PFN_cuMemHostGetDevicePointer_v3020 host_get_device_pointer = required("cuMemHostGetDevicePointer_v2");
  const PFN_cuMemcpyHtoD_v3020 copy_from_host = required("cuMemcpyHtoD_v2");
  const PFN_cuMemcpyDtoH_v3020 copy_to_host = required("cuMemcpyDtoH_v2");
  const PFN_cuMemcpyDtoHAsync_v3020 copy_to_host_async = required("cuMemcpyDtoHAsync_v2");
  const PFN_cuMemcpyAsync_v4000 copy_async = required("cuMemcpyAsync");
  const PFN_cuMemsetD8Async_v3020 fill_async = required("cuMemsetD8Async");

  const PFN_cuMemGetAllocationGranularity_v10020 get_granularity = required("cuMemGetAllocationGranularity");
  const PFN_cuMemAddressReserve_v10020 address_reserve = required("cuMemAddressReserve");
  const PFN_cuMemAddressFree_v10020 address_free = required("cuMemAddressFree");
  const PFN_cuMemCreate_v10020 create = required("cuMemCreate");
  const PFN_cuMemRelease_v10020 release = required("cuMemRelease");
  const PFN_cuMemMap_v10020 map = required("cuMemMap");
  const PFN_cuMemUnmap_v10020 unmap = required("cuMemUnmap");
  const PFN_cuMemSetAccess_v10020 set_access = required("cuMemSetAccess");
  const PFN_cuMemExportToShareableHandle_v10020 export_handle = required("cuMemExportToShareableHandle");
  const PFN_cuMemImportFromShareableHandle_v10020 import_handle = required("cuMemImportFromShareableHandle");
  const PFN_cuMemGetAllocationPropertiesFromHandle_v10020 get_properties =
      required("cuMemGetAllocationPropertiesFromHandle");

  const PFN_cuIpcGetMemHandle_v4010 ipc_get = required("cuIpcGetMemHandle");
  const PFN_cuIpcOpenMemHandle_v11000 ipc_open = required("cuIpcOpenMemHandle_v2");
  const PFN_cuIpcCloseMemHandle_v4010 ipc_close = required("cuIpcCloseMemHandle");

  const PFN_cuStreamCreate_v2000 stream_create = required("cuStreamCreate");
  const PFN_cuStreamDestroy_v4000 stream_destroy = required("cuStreamDestroy_v2");
  const PFN_cuStreamGetCtx_v9020 stream_get_context = required("cuStreamGetCtx");
  const PFN_cuStreamGetId_v12000 stream_get_id = optional("cuStreamGetId");  // since CUDA 12.0
  const PFN_cuStreamSynchronize_v2000 stream_synchronize = required("cuStreamSynchronize");
  const PFN_cuStreamWaitEvent_v3020 stream_wait_event = required("cuStreamWaitEvent");
  const PFN_cuStreamGetCaptureInfo_v10010 stream_get_capture_info = required("cuStreamGetCaptureInfo");
  const PFN_cuThreadExchangeStreamCaptureMode_v10010 exchange_capture_mode =
      required("cuThreadExchangeStreamCaptureMode");
  const PFN_cuStreamWriteValue64_v11070 stream_write_value = optional("cuStreamWriteValue64_v2");  // since CUDA 11.7
  const PFN_cuEventCreate_v2000 event_create = required("cuEventCreate");
  const PFN_cuEventDestroy_v4000 event_destroy = required("cuEventDestroy_v2");
  const PFN_cuEventRecord_v2000 event_record = required("cuEventRecord");
  const PFN_cuEventQuery_v2000 event_query = required("cuEventQuery");
  const PFN_cuEventSynchronize_v2000 event_synchronize = required("cuEventSynchronize");

  const PFN_cuModuleLoadDataEx_v2010 module_load = required("cuModuleLoadDataEx");
  const PFN_cuModuleUnload_v2000 module_unload = required("cuModuleUnload");
  const PFN_cuModuleGetFunction_v2000 module_get_function = required("cuModuleGetFunction");
  const PFN_cuFuncGetAttribute_v2020 function_get_attribute = required("cuFuncGetAttribute");
  const PFN_cuLaunchKernel_v4000 launch_kernel = required("cuLaunchKernel");
};

// Returns the driver of this process, loaded at the first call and never unloaded; null where the machine has none.
// Throws CudaError where it is too old.
const CudaDriver* find_driver();

// Returns the driver. Requires that find_driver has found it: where there is a CudaDevice, it has.
const CudaDriver& driver();

// Throws the failure of one of the driver's functions as CudaError. Does nothing for CUDA_SUCCESS.
void check(const char* call, CUresult result);

// Lets the calling thread allocate, for a scope, while some stream captures: the memory is the caller's business, not the
// graph's.
class RelaxedCapture {
 public:
  RelaxedCapture() { check("cuThreadExchangeStreamCaptureMode", driver().exchange_capture_mode(&mode_)); }
  ~RelaxedCapture() { driver().exchange_capture_mode(&mode_); }
  RelaxedCapture(const RelaxedCapture&) = delete;
  RelaxedCapture& operator=(const RelaxedCapture&) = delete;

 private:
  CUstreamCaptureMode mode_ = CU_STREAM_CAPTURE_MODE_RELAXED;
};

CACHALOT_END
