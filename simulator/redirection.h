// dlopen, dlmopen and dlsym as the process calls them: what loads CUDA's driver or its runtime by name gets the simulated
// ones, and a runtime that a library has linked in is found before anything of the library is called (static_runtimes.h).
#pragma once

namespace cachalot::simulator {

// Call the C library's functions.
void* real_dlopen(const char* file, int mode);
void* real_dlsym(void* library, const char* name);

}  // namespace cachalot::simulator
