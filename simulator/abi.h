// CUDA's own declarations of the functions this library defines, so that the compiler checks each signature against
// the header. Everything declared here is exported; all else in the library is hidden.
#pragma once

#pragma GCC visibility push(default)
#include <cuda.h>
#include <cuda_profiler_api.h>
#include <cuda_runtime_api.h>
#pragma GCC visibility pop

// The function under its name for programs compiled with a default stream for each thread (suffix _ptsz or _ptds). Here
// all threads share one: more is in order than such a program may count on, never less.
#define CACHALOT_SIMULATOR_PER_THREAD(function, suffix) \
  extern "C" __attribute__((visibility("default"), alias(#function))) decltype(function) function##_##suffix;

#define CACHALOT_SIMULATOR_EXPORT extern "C" __attribute__((visibility("default")))
