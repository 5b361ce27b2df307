// The functions of cuBLAS, cuDNN, cuSOLVER and cuSPARSE by which the device is charged for a library, with the first
// handle there.
#include <cstdint>

#include "simulator/calls.h"
#include "simulator/handles.h"

#define EXPORTED extern "C" __attribute__((visibility("default")))

using namespace cachalot::simulator;

namespace {

// The status that each library returns if it cannot have what its handle needs.
struct Failures {
  int not_initialized;
  int no_memory;
};
constexpr Failures kCublas{1, 3};       // CUBLAS_STATUS_NOT_INITIALIZED, CUBLAS_STATUS_ALLOC_FAILED
constexpr Failures kCudnn{1001, 4004};  // CUDNN_STATUS_NOT_INITIALIZED, .._INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED
constexpr Failures kCusolver{1, 2};
constexpr Failures kCusparse{1, 2};

int create(ContextLibrary library, const Failures& failures, std::uintptr_t* handle) {
  const cudaError_t error = guarded([&](Process& process) {
    process.contexts().current().make_library(library);
    return cudaSuccess;
  });
  if (error != cudaSuccess) return error == cudaErrorMemoryAllocation ? failures.no_memory : failures.not_initialized;
  if (handle != nullptr) *handle = fresh_handle();
  return 0;
}

}  // namespace

EXPORTED int cublasCreate_v2(std::uintptr_t* handle) { return create(ContextLibrary::cublas, kCublas, handle); }
EXPORTED int cublasLtCreate(std::uintptr_t* handle) { return create(ContextLibrary::cublas, kCublas, handle); }
EXPORTED int cudnnCreate(std::uintptr_t* handle) { return create(ContextLibrary::cudnn, kCudnn, handle); }
EXPORTED int cusolverDnCreate(std::uintptr_t* handle) { return create(ContextLibrary::cusolver, kCusolver, handle); }
EXPORTED int cusolverSpCreate(std::uintptr_t* handle) { return create(ContextLibrary::cusolver, kCusolver, handle); }
EXPORTED int cusparseCreate(std::uintptr_t* handle) { return create(ContextLibrary::cusparse, kCusparse, handle); }
