// CUDA's error codes that the simulated device gives, so that both devices fail alike.
// The numbers are CUresult's, which cuda_device.cpp holds against cuda.h; cudaError_t has the same for these failures.
#pragma once

#include <string>

#include "cachalot/errors.h"

CACHALOT_BEGIN

enum class CudaCode : int {
#define CODE(name, number, driver_name) name = (number),
#include "device/cuda_codes.inc"
#undef CODE
};

// Returns the driver's name, "CUDA_ERROR_INVALID_VALUE"; "an injected error" for a number not listed.
const char* cuda_code_name(int code);

// True for what CUDA answers for a stream that was destroyed. A DeviceReset has one of the codes, and is something else.
inline bool tells_of_dead_stream(const CudaError& error) {
  const bool has_code = error.code() == static_cast<int>(CudaCode::invalid_resource_handle) ||
                        error.code() == static_cast<int>(CudaCode::context_is_destroyed);
  return has_code && dynamic_cast<const DeviceReset*>(&error) == nullptr;
}

// Does the calls; false where one of them throws CUDA's out of memory, which calls without a return value for it do (Device):
// mappings need memory, too.
template <typename Calls>
bool have_memory(Calls&& calls) {
  try {
    calls();
  } catch (const CudaError& error) {
    if (error.code() != static_cast<int>(CudaCode::memory_allocation)) throw;
    return false;
  }
  return true;
}

[[noreturn]] inline void fail(const char* call, CudaCode code, const std::string& reason = {}) {
  std::string name = cuda_code_name(static_cast<int>(code));
  if (!reason.empty()) name += ": " + reason;
  throw CudaError(call, static_cast<int>(code), name);
}

CACHALOT_END
