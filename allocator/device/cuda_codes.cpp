#include "device/cuda_codes.h"

CACHALOT_BEGIN

const char* cuda_code_name(int code) {
  switch (static_cast<CudaCode>(code)) {
    case CudaCode::invalid_value:
      return "CUDA_ERROR_INVALID_VALUE";
    case CudaCode::memory_allocation:
      return "CUDA_ERROR_OUT_OF_MEMORY";
    case CudaCode::invalid_device:
      return "CUDA_ERROR_INVALID_DEVICE";
    case CudaCode::device_uninitialized:
      return "CUDA_ERROR_INVALID_CONTEXT";
    case CudaCode::invalid_resource_handle:
      return "CUDA_ERROR_INVALID_HANDLE";
    case CudaCode::illegal_state:
      return "CUDA_ERROR_ILLEGAL_STATE";
    case CudaCode::illegal_address:
      return "CUDA_ERROR_ILLEGAL_ADDRESS";
    case CudaCode::context_is_destroyed:
      return "CUDA_ERROR_CONTEXT_IS_DESTROYED";
    case CudaCode::not_supported:
      return "CUDA_ERROR_NOT_SUPPORTED";
    case CudaCode::capture_unsupported:
      return "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED";
    case CudaCode::capture_invalidated:
      return "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED";
    case CudaCode::capture_merge:
      return "CUDA_ERROR_STREAM_CAPTURE_MERGE";
    case CudaCode::capture_unmatched:
      return "CUDA_ERROR_STREAM_CAPTURE_UNMATCHED";
    case CudaCode::capture_isolation:
      return "CUDA_ERROR_STREAM_CAPTURE_ISOLATION";
    case CudaCode::capture_implicit:
      return "CUDA_ERROR_STREAM_CAPTURE_IMPLICIT";
    case CudaCode::captured_event:
      return "CUDA_ERROR_CAPTURED_EVENT";
    case CudaCode::unknown:
      return "CUDA_ERROR_UNKNOWN";
  }
  return "an injected error";
}

CACHALOT_END
