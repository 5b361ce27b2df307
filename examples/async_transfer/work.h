// The work between the copies: halves every value and adds one, a kernel at a time.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>

namespace async_transfer {

inline constexpr float kAdded = 1;
inline constexpr float kFactor = 0.5F;  // halving is exact, so that the host's result is the GPU's to the bit

// One kernel on the stream. Throws std::runtime_error where the launch fails.
void launch_work(float* values, std::size_t count, cudaStream_t stream);

}  // namespace async_transfer
