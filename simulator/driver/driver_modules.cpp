// The driver's functions about code: modules and libraries are loaded without being read, every kernel is found in them,
// and launching one costs the time of a launch.
#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "base/environment.h"
#include "simulator/base/registry.h"
#include "simulator/models/cuda_abi.h"
#include "simulator/models/launched_kernels.h"
#include "simulator/state/calls.h"

using namespace cachalot::simulator;

namespace {

// Gives a handle for an object without content.
template <typename Handle>
CUresult give_handle(Handle* handle) {
  return driver_call([&](Process&) { *handle = reinterpret_cast<Handle>(fresh_handle()); });
}

CUresult give_module(CUmodule* module) {
  return call_in_context("cuModuleLoad", [&](Process&) { *module = reinterpret_cast<CUmodule>(fresh_handle()); });
}

// CUDA's own variables for it. Images of machine code begin with the first byte of ELF's or of nvcc's wrapper's and head's
// magic numbers.
bool is_refused(const void* image) {
  const unsigned char first = *static_cast<const unsigned char*>(image);
  const bool is_ptx = first != 0x7f && first != 0xb1 && first != 0x50;
  const auto is_on = [](const char* variable) { return cachalot::environment(variable) == "1"; };
  return is_ptx && (is_on("CUDA_DISABLE_PTX_JIT") || is_on("CUDA_DISABLE_JIT"));
}

CUresult load(CUmodule* module, const void* image) {
  return is_refused(image) ? CUDA_ERROR_JIT_COMPILATION_DISABLED : give_module(module);
}

// The threads of the largest block that a kernel may have, within the caller's limit (0: none).
int largest_block(int limit) {
  constexpr int kMostThreads = 1024;
  return limit > 0 ? std::min(limit, kMostThreads) : kMostThreads;
}

CUresult launch(CUfunction function, dim3 grid, dim3 block, std::size_t shared_bytes, CUstream stream) {
  return call_in_context("cuLaunchKernel", [&](Process& process) {
    if (const cudaError_t error = check_launch(*process.config().gpu, grid, block, shared_bytes); error != cudaSuccess)
      return cudaErrorInvalidValue;
    cudaKernelNodeParams params{};
    params.func = function;
    params.gridDim = grid;
    params.blockDim = block;
    params.sharedMemBytes = static_cast<unsigned int>(shared_bytes);
    process.launches().launch_kernel(process.streams().at("cuLaunchKernel", stream), params);
    return cudaSuccess;
  });
}

cudaError_t result(CUresult error) { return static_cast<cudaError_t>(error); }

}  // namespace

extern "C" {

CUresult cuModuleLoad(CUmodule* module, const char*) { return give_module(module); }
CUresult cuModuleLoadData(CUmodule* module, const void* image) { return load(module, image); }
CUresult cuModuleLoadDataEx(CUmodule* module, const void* image, unsigned int, CUjit_option*, void**) {
  return load(module, image);
}
CUresult cuModuleLoadFatBinary(CUmodule* module, const void*) { return give_module(module); }
CUresult cuModuleUnload(CUmodule) { return CUDA_SUCCESS; }
CUresult cuModuleGetFunction(CUfunction* function, CUmodule, const char*) { return give_handle(function); }
CUresult cuLibraryLoadData(CUlibrary* library, const void*, CUjit_option*, void**, unsigned int, CUlibraryOption*,
                           void**, unsigned int) {
  return give_handle(library);
}
CUresult cuLibraryLoadFromFile(CUlibrary* library, const char*, CUjit_option*, void**, unsigned int, CUlibraryOption*,
                               void**, unsigned int) {
  return give_handle(library);
}
CUresult cuLibraryUnload(CUlibrary) { return CUDA_SUCCESS; }
CUresult cuLibraryGetKernel(CUkernel* kernel, CUlibrary, const char*) { return give_handle(kernel); }
CUresult cuLibraryGetModule(CUmodule* module, CUlibrary) { return give_handle(module); }
CUresult cuKernelGetFunction(CUfunction* function, CUkernel kernel) {
  *function = reinterpret_cast<CUfunction>(kernel);
  return CUDA_SUCCESS;
}
CUresult cuLinkCreate(unsigned int, CUjit_option*, void**, CUlinkState* state) { return give_handle(state); }
CUresult cuLinkAddData(CUlinkState, CUjitInputType, void*, size_t, const char*, unsigned int, CUjit_option*, void**) {
  return CUDA_SUCCESS;
}
CUresult cuLinkAddFile(CUlinkState, CUjitInputType, const char*, unsigned int, CUjit_option*, void**) {
  return CUDA_SUCCESS;
}
CUresult cuLinkComplete(CUlinkState, void** image, size_t* bytes) {
  static char empty_image[1];
  *image = empty_image;
  *bytes = sizeof(empty_image);
  return CUDA_SUCCESS;
}
CUresult cuLinkDestroy(CUlinkState) { return CUDA_SUCCESS; }

CUresult cuModuleGetLoadingMode(CUmoduleLoadingMode* mode) {
  const bool is_eager = module_loading_of_environment() == ModuleLoading::eager;
  *mode = is_eager ? CU_MODULE_EAGER_LOADING : CU_MODULE_LAZY_LOADING;
  return CUDA_SUCCESS;
}
CUresult cuFuncIsLoaded(CUfunctionLoadingState* state, CUfunction) {
  *state = CU_FUNCTION_LOADING_STATE_LOADED;
  return CUDA_SUCCESS;
}
CUresult cuFuncLoad(CUfunction) { return CUDA_SUCCESS; }
CUresult cuFuncGetModule(CUmodule* module, CUfunction) { return give_handle(module); }
CUresult cuKernelGetLibrary(CUlibrary* library, CUkernel) { return give_handle(library); }
CUresult cuKernelSetCacheConfig(CUkernel, CUfunc_cache, CUdevice) { return CUDA_SUCCESS; }

CUresult cuFuncGetAttribute(int* value, CUfunction_attribute attribute, CUfunction function) {
  return call_in_context(
      __func__, [&](Process& process) { *value = kernel_attribute(*process.config().gpu, function, attribute); });
}
CUresult cuFuncSetAttribute(CUfunction, CUfunction_attribute, int) { return CUDA_SUCCESS; }
CUresult cuFuncSetCacheConfig(CUfunction, CUfunc_cache) { return CUDA_SUCCESS; }
CUresult cuKernelGetAttribute(int* value, CUfunction_attribute attribute, CUkernel kernel, CUdevice) {
  return cuFuncGetAttribute(value, attribute, reinterpret_cast<CUfunction>(kernel));
}
CUresult cuKernelSetAttribute(CUfunction_attribute, int, CUkernel, CUdevice) { return CUDA_SUCCESS; }

CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, CUfunction, int block_threads, size_t shared_bytes) {
  return driver_call(
      [&](Process& process) { *blocks = active_blocks(*process.config().gpu, block_threads, shared_bytes); });
}
CUresult cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* blocks, CUfunction function, int block_threads,
                                                              size_t shared_bytes, unsigned int) {
  return cuOccupancyMaxActiveBlocksPerMultiprocessor(blocks, function, block_threads, shared_bytes);
}

CUresult cuOccupancyMaxPotentialBlockSizeWithFlags(int* grid_blocks, int* block_threads, CUfunction,
                                                   CUoccupancyB2DSize shared_bytes_of, size_t shared_bytes, int limit,
                                                   unsigned int) {
  return driver_call([&](Process& process) {
    const GpuModel& gpu = *process.config().gpu;
    *block_threads = largest_block(limit);
    const std::size_t bytes = shared_bytes_of ? shared_bytes_of(*block_threads) : shared_bytes;
    *grid_blocks = active_blocks(gpu, *block_threads, bytes) * gpu.multiprocessors;
  });
}
CUresult cuOccupancyMaxPotentialBlockSize(int* grid_blocks, int* block_threads, CUfunction function,
                                          CUoccupancyB2DSize shared_bytes_of, size_t shared_bytes, int limit) {
  return cuOccupancyMaxPotentialBlockSizeWithFlags(grid_blocks, block_threads, function, shared_bytes_of, shared_bytes,
                                                   limit, 0);
}
CACHALOT_SIMULATOR_BY_RUNTIME(4, cuOccupancyAvailableDynamicSMemPerBlock, cudaOccupancyAvailableDynamicSMemPerBlock)
CUresult cuOccupancyMaxPotentialClusterSize(int* blocks, CUfunction function, const CUlaunchConfig*) {
  return by_runtime(cudaOccupancyMaxPotentialClusterSize, blocks, function, nullptr);
}
CUresult cuOccupancyMaxActiveClusters(int* clusters, CUfunction function, const CUlaunchConfig* config) {
  cudaLaunchConfig_t launched{};
  launched.blockDim = {config->blockDimX, config->blockDimY, config->blockDimZ};
  launched.dynamicSmemBytes = config->sharedMemBytes;
  return by_runtime(cudaOccupancyMaxActiveClusters, clusters, function, &launched);
}

CUresult cuLaunchKernel(CUfunction function, unsigned int grid_x, unsigned int grid_y, unsigned int grid_z,
                        unsigned int block_x, unsigned int block_y, unsigned int block_z, unsigned int shared_bytes,
                        CUstream stream, void**, void**) {
  return launch(function, {grid_x, grid_y, grid_z}, {block_x, block_y, block_z}, shared_bytes, stream);
}
CUresult cuLaunchKernelEx(const CUlaunchConfig* config, CUfunction function, void**, void**) {
  return launch(function, {config->gridDimX, config->gridDimY, config->gridDimZ},
                {config->blockDimX, config->blockDimY, config->blockDimZ}, config->sharedMemBytes, config->hStream);
}
CUresult cuLaunchCooperativeKernel(CUfunction function, unsigned int grid_x, unsigned int grid_y, unsigned int grid_z,
                                   unsigned int block_x, unsigned int block_y, unsigned int block_z,
                                   unsigned int shared_bytes, CUstream stream, void**) {
  return launch(function, {grid_x, grid_y, grid_z}, {block_x, block_y, block_z}, shared_bytes, stream);
}

CUresult cuTensorMapEncodeTiled(CUtensorMap* map, CUtensorMapDataType, cuuint32_t, void*, const cuuint64_t*,
                                const cuuint64_t*, const cuuint32_t*, const cuuint32_t*, CUtensorMapInterleave,
                                CUtensorMapSwizzle, CUtensorMapL2promotion, CUtensorMapFloatOOBfill) {
  *map = {};
  return CUDA_SUCCESS;
}

// ---- The runtime's functions about libraries ------------------------------------------------------------------------

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
