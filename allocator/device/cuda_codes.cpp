#include "device/cuda_codes.h"

namespace cachalot {

const char* cuda_code_name(int code) {
  switch (static_cast<CudaCode>(code)) {
    case CudaCode::invalid_value:
      return "cudaErrorInvalidValue";
    case CudaCode::memory_allocation:
      return "cudaErrorMemoryAllocation";
    case CudaCode::invalid_device:
      return "cudaErrorInvalidDevice";
    case CudaCode::device_uninitialized:
      return "cudaErrorDeviceUninitialized";
    case CudaCode::invalid_resource_handle:
      return "cudaErrorInvalidResourceHandle";
    case CudaCode::illegal_state:
      return "cudaErrorIllegalState";
    case CudaCode::illegal_address:
      return "cudaErrorIllegalAddress";
    case CudaCode::context_is_destroyed:
      return "cudaErrorContextIsDestroyed";
    case CudaCode::not_supported:
      return "cudaErrorNotSupported";
    case CudaCode::capture_unsupported:
      return "cudaErrorStreamCaptureUnsupported";
    case CudaCode::capture_invalidated:
      return "cudaErrorStreamCaptureInvalidated";
    case CudaCode::capture_merge:
      return "cudaErrorStreamCaptureMerge";
    case CudaCode::capture_unmatched:
      return "cudaErrorStreamCaptureUnmatched";
    case CudaCode::capture_isolation:
      return "cudaErrorStreamCaptureIsolation";
    case CudaCode::captured_event:
      return "cudaErrorCapturedEvent";
    case CudaCode::unknown:
      return "cudaErrorUnknown";
  }
  return "an injected error";
}

}  // namespace cachalot
