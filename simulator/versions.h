// The CUDA this library is: runtime and driver alike.
#pragma once

#include "simulator/abi.h"

namespace cachalot::simulator {

inline constexpr int kCudaVersion = CUDART_VERSION;  // of the headers it was built with

}  // namespace cachalot::simulator
