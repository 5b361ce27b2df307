// The backend on the GPU: numbers from cuRAND, a kernel for each piece of work, sums by CUB in scratch memory that is
// reused.
#pragma once

#include <memory>

#include "cachalot/caching_allocator.h"
#include "examples/lsm_pricing/backend.h"

namespace lsm {

// On device 0. `allocator` outlives it. Throws std::runtime_error for errors of CUDA and cuRAND, as all its calls do.
std::unique_ptr<Backend> cuda_backend(cachalot::CachingAllocator& allocator);

}  // namespace lsm
