// The CUDA this library is: runtime and driver alike.
#pragma once

#include "simulator/abi.h"

namespace cachalot::simulator {

// A driver of CUDA 13.0 serves programs of CUDA 12 and of all of CUDA 13.
inline constexpr int kCudaVersion = 13000;
static_assert(CUDART_VERSION >= kCudaVersion && CUDART_VERSION < 14000, "the headers must be CUDA 13's");

}  // namespace cachalot::simulator
