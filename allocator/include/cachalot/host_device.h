// Code that is the same on the host and in kernels.
#pragma once

#include "cachalot/require_cpp17.h"

#ifdef __CUDACC__
#define CACHALOT_HOST_DEVICE __host__ __device__
#else
#define CACHALOT_HOST_DEVICE
#endif
