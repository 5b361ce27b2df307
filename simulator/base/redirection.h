// Replaces dlopen, dlmopen and dlsym for the process: code that loads CUDA's driver or its runtime by name gets the simulated
// ones. A runtime that a library has linked in is found before any function of the library is called (static_runtimes.h).
#pragma once

#include <string>
#include <string_view>

#include "simulator/models/cuda_abi.h"

namespace cachalot::simulator {

// Call the C library's functions.
void* real_dlopen(const char* file, int mode);
void* real_dlsym(void* library, const char* name);

// --- this library, as the dynamic linker knows it ---

// Returns the function of this name that this library exports, even if another library exports one, too; null if there is none.
void* own_function(const char* name);
// Returns the path of the library's file, without symbolic links.
const std::string& own_path();

// Returns the last part of a path.
inline std::string_view file_name(std::string_view path) { return path.substr(path.rfind('/') + 1); }

// Finds the form of a driver function that the driver of CUDA `version` has (entry_points.cpp). Returns the result of
// cudaGetDriverEntryPointByVersion; without flags, it is for the default stream of the thread's call (OwnDefaultStream).
cudaError_t driver_entry_point(const char* name, void** function, unsigned int version, unsigned long long flags,
                               cudaDriverEntryPointQueryResult* result) noexcept;

}  // namespace cachalot::simulator
