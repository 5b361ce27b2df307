// Patterns and moves by CUDA kernels: a launch carries dozens of stretches as its arguments, so that it needs no memory and
// no copy.
#pragma once

#include <memory>

#include "cachalot/kernels.h"
#include "device/cuda_device.h"

CACHALOT_BEGIN

// device_code.ptx, which the driver compiles for its GPU, and keeps for the next program.
extern const char* const kDeviceCode;

// Returns the kernels of the device. They are loaded into its context once for all callers and permanently: a graph may
// hold a kernel for as long as the context lives. Null where the driver cannot compile them, which is said on stderr,
// once.
// Throws OutOfMemory, also where the device does not have the memory for the answers, and CudaError for any other failure.
std::unique_ptr<Kernels> cuda_kernels(std::shared_ptr<CudaDevice> device);

CACHALOT_END
