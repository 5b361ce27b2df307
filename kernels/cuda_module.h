// Our kernels in a device's context, and their launches.
#pragma once

#include <cstdint>

#include "cachalot/device.h"
#include "device/cuda_device.h"

struct CUfunc_st;

CACHALOT_BEGIN

// device_code.ptx, which the driver compiles for its GPU, and keeps for the next program.
extern const char* const kDeviceCode;

struct CudaModule {
  CUfunc_st* fill = nullptr;
  CUfunc_st* verify = nullptr;
  CUfunc_st* move = nullptr;
};

// Loads the kernels into the device's context, once for all callers and for good: a graph may hold a kernel for as long as
// the context lives. Null where the driver cannot compile them, which is said on stderr, once.
// Throws OutOfMemory, and CudaError for any other failure.
const CudaModule* module_for(CudaDevice& device);

// Queues `blocks` blocks of kThreadsABlock threads. `arguments` are pointers to the kernel's arguments. Requires the
// device's context.
void launch(CUfunc_st* kernel, std::uint64_t blocks, Stream stream, void** arguments);

CACHALOT_END
