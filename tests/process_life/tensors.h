// The tensors that the tests of threads and forks take from pools.
#pragma once

#include <cstddef>

#include "cachalot/tensor_pool.h"

namespace cachalot {

inline const TensorSpec kSpec = {{64, 64}, DType::float32};
inline constexpr std::size_t kTensorBytes = 64 * 64 * 4;

}  // namespace cachalot
