// What every caller of the CUDA runtime needs: its errors as exceptions, and a current device.
#pragma once

#include <cuda_runtime_api.h>

#include <string>

#include "cachalot/errors.h"

namespace cachalot {

// Reports a failed runtime call, and clears it, so that nobody sees it a second time.
[[noreturn]] inline void throw_runtime_error(const char* call, cudaError_t error) {
  cudaGetLastError();
  throw CudaError(call, static_cast<int>(error),
                  std::string(cudaGetErrorName(error)) + ", " + cudaGetErrorString(error));
}

inline void check(const char* call, cudaError_t error) {
  if (error != cudaSuccess) throw_runtime_error(call, error);
}

// Makes a device current for a scope, and only if it is not already. The first time on a thread it is set in any case:
// the driver API needs the context that cudaSetDevice makes current, and until then "device 0" is only a default.
class CurrentDevice {
 public:
  explicit CurrentDevice(int ordinal) {
    thread_local bool has_context = false;
    check("cudaGetDevice", cudaGetDevice(&previous_));
    if (previous_ == ordinal && has_context) return;
    check("cudaSetDevice", cudaSetDevice(ordinal));
    has_context = true;
    changed_ = previous_ != ordinal;
  }
  ~CurrentDevice() {
    if (changed_) cudaSetDevice(previous_);
  }
  CurrentDevice(const CurrentDevice&) = delete;
  CurrentDevice& operator=(const CurrentDevice&) = delete;

 private:
  int previous_ = 0;
  bool changed_ = false;
};

}  // namespace cachalot
