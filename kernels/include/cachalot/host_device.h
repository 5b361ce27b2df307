/// @file
/// The macro for functions that run on the host and in kernels.
#pragma once

#include "cachalot/require_cpp17.h"

/// Expands to `__host__ __device__` under nvcc and to nothing elsewhere.
#ifdef __CUDACC__
#define CACHALOT_HOST_DEVICE __host__ __device__
#else
#define CACHALOT_HOST_DEVICE
#endif
