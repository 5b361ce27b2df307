// The runtime's functions about code that is loaded at run time, which is not read: as in driver_modules.cpp.
#include "simulator/abi.h"

namespace {

cudaError_t result(CUresult error) { return static_cast<cudaError_t>(error); }

}  // namespace

extern "C" {

cudaError_t cudaLibraryLoadData(cudaLibrary_t* library, const void* code, cudaJitOption*, void**, unsigned int,
                                cudaLibraryOption*, void**, unsigned int) {
  return result(cuLibraryLoadData(library, code, nullptr, nullptr, 0, nullptr, nullptr, 0));
}

cudaError_t cudaLibraryLoadFromFile(cudaLibrary_t* library, const char* name, cudaJitOption*, void**, unsigned int,
                                    cudaLibraryOption*, void**, unsigned int) {
  return result(cuLibraryLoadFromFile(library, name, nullptr, nullptr, 0, nullptr, nullptr, 0));
}

cudaError_t cudaLibraryUnload(cudaLibrary_t library) { return result(cuLibraryUnload(library)); }

cudaError_t cudaLibraryGetKernel(cudaKernel_t* kernel, cudaLibrary_t library, const char* name) {
  return result(cuLibraryGetKernel(kernel, library, name));
}

cudaError_t cudaKernelSetAttributeForDevice(cudaKernel_t, cudaFuncAttribute, int, int) { return cudaSuccess; }

}  // extern "C"
