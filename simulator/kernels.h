// What can be said of a kernel that is never run: any address or handle names one.
#pragma once

#include <cstddef>

#include "simulator/abi.h"
#include "simulator/gpu_models.h"

namespace cachalot::simulator {

inline constexpr int kKernelRegisters = 32;  // a thread; so that registers never limit what runs at once

// Its versions are those of the code that the GPU would run (fat_binaries.h), or the GPU's own where that is unknown.
cudaFuncAttributes kernel_attributes(const GpuModel& gpu, const void* function);
// Throws cudaErrorInvalidValue for an attribute that does not exist.
int kernel_attribute(const GpuModel& gpu, const void* function, int attribute);
// cudaSuccess, or what the driver says of a launch that the device cannot run.
cudaError_t check_launch(const GpuModel& gpu, dim3 grid, dim3 block, std::size_t shared_bytes);
// Blocks that a multiprocessor can run at once.
int active_blocks(const GpuModel& gpu, int block_threads, std::size_t dynamic_shared_bytes);

}  // namespace cachalot::simulator
