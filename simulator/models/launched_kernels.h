// The properties of a kernel that is never run: any address or handle names one. If a program has registered it, the code
// that came along says for which GPUs it is.
#pragma once

#include <cstddef>
#include <optional>

#include "simulator/models/cuda_abi.h"
#include "simulator/models/gpu_models.h"

namespace cachalot::simulator {

// The code that compiled programs bring along, for several compute capabilities: which of it a GPU would run. Programs
// register it before main and when they load libraries. It is read only on demand. Thread-safe.

// Registers a kernel of the fat binary with this wrapper (fatbinary_section.h of the toolkit), which outlives its
// kernels' registration.
void register_kernel(const void* wrapper, const void* function);
void forget_kernels(const void* wrapper);

// Compute capabilities, 86 for 8.6.
struct CodeVersion {
  int binary = 0;  // of the machine code: the GPU's own where it must be made from PTX
  int ptx = 0;     // of the PTX that it is made of
};

// Returns the code of this kernel that the GPU would run: the newest binary of its generation that is not newer than it,
// else the newest PTX that is not newer. Empty for a function that is not registered, and if there is no such code.
std::optional<CodeVersion> code_for(const GpuModel& gpu, const void* function);

inline constexpr int kKernelRegisters = 32;  // a thread; so that registers never limit what runs at once

// Its versions are those of the code that the GPU would run (CodeVersion), or the GPU's own where that is unknown.
cudaFuncAttributes kernel_attributes(const GpuModel& gpu, const void* function);
// Throws cudaErrorInvalidValue for an attribute that does not exist.
int kernel_attribute(const GpuModel& gpu, const void* function, int attribute);
// cudaSuccess, or what the driver says of a launch that the device cannot run.
cudaError_t check_launch(const GpuModel& gpu, dim3 grid, dim3 block, std::size_t shared_bytes);
// Blocks that a multiprocessor can run at once.
int active_blocks(const GpuModel& gpu, int block_threads, std::size_t dynamic_shared_bytes);

}  // namespace cachalot::simulator
