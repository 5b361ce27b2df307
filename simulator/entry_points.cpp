// The driver's functions by name, for cudaGetDriverEntryPoint, cuGetProcAddress and their kin.
#include <dlfcn.h>

#include <initializer_list>
#include <string>

#include "simulator/calls.h"
#include "simulator/notes.h"

using namespace cachalot::simulator;

namespace {

// This library itself, whatever else the process has loaded.
void* own_library() {
  static void* const library = [] {
    Dl_info info{};
    dladdr(reinterpret_cast<void*>(&cuInit), &info);
    return dlopen(info.dli_fname, RTLD_LAZY | RTLD_NOLOAD);
  }();
  return library;
}

// Of the forms of a function the newest, which is the one that the headers declare.
void* find_entry_point(const std::string& name) {
  for (const char* suffix : {"_v4", "_v3", "_v2", ""}) {
    if (void* found = dlsym(own_library(), (name + suffix).c_str())) return found;
  }
  note_not_simulated(name);
  return nullptr;
}

cudaError_t driver_entry_point(const char* name, void** function, cudaDriverEntryPointQueryResult* result) {
  *function = find_entry_point(name);
  if (result) *result = *function ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
  if (*function || result) return cudaSuccess;
  this_thread().last_error = cudaErrorSymbolNotFound;
  return cudaErrorSymbolNotFound;
}

}  // namespace

extern "C" {

cudaError_t cudaGetDriverEntryPointByVersion(const char* name, void** function, unsigned int, unsigned long long,
                                             cudaDriverEntryPointQueryResult* result) {
  return driver_entry_point(name, function, result);
}

cudaError_t cudaGetDriverEntryPoint(const char* name, void** function, unsigned long long,
                                    cudaDriverEntryPointQueryResult* result) {
  return driver_entry_point(name, function, result);
}

CUresult cuGetProcAddress(const char* name, void** function, int, cuuint64_t, CUdriverProcAddressQueryResult* result) {
  *function = find_entry_point(name);
  if (result) *result = *function ? CU_GET_PROC_ADDRESS_SUCCESS : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
  return *function ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

}  // extern "C"

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"  // programs of before CUDA 13 ask by it
CACHALOT_SIMULATOR_PER_THREAD(cudaGetDriverEntryPoint, ptsz)
#pragma GCC diagnostic pop
CACHALOT_SIMULATOR_PER_THREAD(cudaGetDriverEntryPointByVersion, ptsz)
