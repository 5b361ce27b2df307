// CUDA's own declarations of the functions this library defines, so that the compiler checks each signature against
// the header. Everything declared here is exported; all else in the library is hidden.
#pragma once

#pragma GCC visibility push(default)
#include <cuda.h>
#include <cuda_profiler_api.h>
#include <cuda_runtime_api.h>
#pragma GCC visibility pop

#define CACHALOT_SIMULATOR_EXPORT extern "C" __attribute__((visibility("default")))
