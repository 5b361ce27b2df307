// Kernels that use a slot pool as programs do, compiled by nvcc, for tests that a C++ compiler compiles.
#pragma once

#include <cuda_runtime_api.h>

#include "cachalot/slot_pool.h"

namespace cachalot {

// `threads` threads take a slot each, and keep it: slots[thread], null where there was none.
cudaError_t launch_take(cudaStream_t stream, const SlotPoolView& pool, unsigned threads, void** slots);
// They give back slots[thread].
cudaError_t launch_give(cudaStream_t stream, const SlotPoolView& pool, unsigned threads, void* const* slots);
// Each takes a slot of at least 8 bytes, marks it as its own, and gives it back, `rounds` times, at moments when others
// of its warp do not; *shared counts slots in which another thread's mark was found.
cudaError_t launch_churn(cudaStream_t stream, const SlotPoolView& pool, unsigned threads, unsigned rounds,
                         unsigned long long* shared);

}  // namespace cachalot
