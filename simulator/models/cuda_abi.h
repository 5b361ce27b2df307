// CUDA's own declarations of the functions this library defines, so that the compiler checks each signature against
// the header. Everything declared here is exported; all else in the library is hidden.
#pragma once

#pragma GCC visibility push(default)
#include <cuda.h>
#include <cuda_profiler_api.h>
#include <cuda_runtime_api.h>
#pragma GCC visibility pop

#define CACHALOT_SIMULATOR_EXPORT extern "C" __attribute__((visibility("default")))

namespace cachalot::simulator {

// The CUDA this library is: runtime and driver alike. A driver of CUDA 13.0 serves programs of CUDA 12 and of all of CUDA 13.
inline constexpr int kCudaVersion = 13000;
static_assert(CUDART_VERSION >= kCudaVersion && CUDART_VERSION < 14000, "the headers must be CUDA 13's");

}  // namespace cachalot::simulator
