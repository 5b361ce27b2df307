// dlopen, dlmopen and dlsym as the process calls them: what loads CUDA's driver or its runtime by name gets the simulated
// ones, and a runtime that a library has linked in is found before anything of the library is called (static_runtimes.h).
#pragma once

#include <string>
#include <string_view>

#include "simulator/models/cuda_abi.h"

namespace cachalot::simulator {

// Call the C library's functions.
void* real_dlopen(const char* file, int mode);
void* real_dlsym(void* library, const char* name);

// This library, as the dynamic linker knows it.

// Returns a function that this library exports, whatever else the process has loaded; null where there is none.
void* own_function(const char* name);
// Returns the path of the library's file, without symbolic links.
const std::string& own_path();

// Returns the last part of a path.
inline std::string_view file_name(std::string_view path) { return path.substr(path.rfind('/') + 1); }

// Finds the form of the driver's function that a driver of this version of CUDA has (entry_points.cpp). Returns what cudaGetDriverEntryPointByVersion does.
cudaError_t driver_entry_point(const char* name, void** function, unsigned int version,
                               cudaDriverEntryPointQueryResult* result) noexcept;

}  // namespace cachalot::simulator
