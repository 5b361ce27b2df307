// The driver's functions by name, for cudaGetDriverEntryPoint, cuGetProcAddress and their kin.
#pragma once

#include "simulator/abi.h"

namespace cachalot::simulator {

// Finds the form of the function that a driver of this version of CUDA has. Returns what cudaGetDriverEntryPointByVersion does.
cudaError_t driver_entry_point(const char* name, void** function, unsigned int version,
                               cudaDriverEntryPointQueryResult* result) noexcept;

}  // namespace cachalot::simulator
