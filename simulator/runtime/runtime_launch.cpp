// The runtime's functions about kernels: registration by compiled programs, launches, attributes, occupancy.
#include <cstddef>
#include <cstdlib>
#include <unordered_map>

#include "base/locks.h"
#include "simulator/models/launched_kernels.h"
#include "simulator/state/calls.h"

using namespace cachalot;
using namespace cachalot::simulator;

namespace {

// __device__ and __constant__ variables. Compiled programs register them before main; each is kept in host memory, where
// only copies reach it, and is one for all devices. Thread-safe.

struct Variable {
  char* start = nullptr;
  std::size_t bytes = 0;
};

struct VariableTable {
  Mutex mutex;
  std::unordered_map<const void*, Variable> variables CACHALOT_GUARDED_BY(mutex);
};

// Never destroyed: static destructors of the program may still copy.
VariableTable& all_variables() {
  static auto& instance = *new VariableTable;
  return instance;
}

// `symbol`: the address by which the program names it.
const Variable& register_variable(const void* symbol, std::size_t bytes) {
  const Lock lock(all_variables().mutex);
  Variable& variable = all_variables().variables[symbol];
  if (variable.bytes < bytes) variable = {static_cast<char*>(std::calloc(1, bytes)), bytes};
  return variable;
}

// Null if none was registered.
const Variable* find_variable(const void* symbol) {
  const Lock lock(all_variables().mutex);
  const auto at = all_variables().variables.find(symbol);
  return at == all_variables().variables.end() ? nullptr : &at->second;
}

cudaKernelNodeParams kernel_params(const void* function, dim3 grid, dim3 block, std::size_t shared_bytes) {
  cudaKernelNodeParams params{};
  params.func = const_cast<void*>(function);
  params.gridDim = grid;
  params.blockDim = block;
  params.sharedMemBytes = static_cast<unsigned int>(shared_bytes);
  return params;
}

// The launch's shape must be one the device can run, as the driver checks.
cudaError_t launch(const void* function, dim3 grid, dim3 block, std::size_t shared_bytes, cudaStream_t stream) {
  return runtime_call([&](Process& process) {
    if (!function) return cudaErrorInvalidDeviceFunction;
    if (const cudaError_t error = check_launch(*process.config().gpu, grid, block, shared_bytes); error != cudaSuccess)
      return error;
    process.launches().launch_kernel(process.streams().at("cudaLaunchKernel", stream),
                                     kernel_params(function, grid, block, shared_bytes));
    return cudaSuccess;
  });
}

constexpr int kMostBlocksOfCluster = 8;  // portably, on every GPU that has clusters

cudaError_t occupancy(int* blocks, int block_threads, std::size_t shared_bytes) {
  return runtime_call(
      [&](Process& process) { *blocks = active_blocks(*process.config().gpu, block_threads, shared_bytes); });
}

// From now on the variable's address is known as device memory.
void know_variable(Process& process, const Variable& variable) {
  HostMemory& memory = process.host_memory();
  if (memory.find(variable.start)) return;
  memory.add({HostRange::Kind::variable, variable.start, variable.bytes, 0, process.contexts().current().ordinal});
}

const Variable& variable_at(Process& process, const void* symbol) {
  const Variable* variable = find_variable(symbol);
  if (!variable) throw CudaError("cudaGetSymbolAddress", cudaErrorInvalidSymbol, "no device variable");
  know_variable(process, *variable);
  return *variable;
}

cudaError_t copy_variable(const void* symbol, std::size_t bytes, std::size_t offset, void* to, const void* from,
                          cudaStream_t stream) {
  void* address = nullptr;
  std::size_t size = 0;
  cudaError_t error = cudaGetSymbolAddress(&address, symbol);
  if (error == cudaSuccess) error = cudaGetSymbolSize(&size, symbol);
  if (error == cudaSuccess && (bytes > size || offset > size - bytes)) error = cudaErrorInvalidValue;
  if (error != cudaSuccess) return error;
  void* variable = static_cast<char*>(address) + offset;
  return to ? cudaMemcpyAsync(to, variable, bytes, cudaMemcpyDefault, stream)
            : cudaMemcpyAsync(variable, from, bytes, cudaMemcpyDefault, stream);
}

}  // namespace

// ---- Calls of compiled programs -------------------------------------------------------------------------------------

// A handle is never deleted: a binary registered again (static_runtimes.h) is also unregistered again.
CACHALOT_SIMULATOR_EXPORT void** __cudaRegisterFatBinary(void* image) { return new void*(image); }
CACHALOT_SIMULATOR_EXPORT void __cudaRegisterFatBinaryEnd(void**) {}
CACHALOT_SIMULATOR_EXPORT void __cudaUnregisterFatBinary(void** handle) { forget_kernels(*handle); }
CACHALOT_SIMULATOR_EXPORT char __cudaInitModule(void**) { return 1; }
CACHALOT_SIMULATOR_EXPORT void __cudaRegisterFunction(void** handle, const char* function, char*, const char*, int,
                                                      uint3*, uint3*, dim3*, dim3*, int*) {
  register_kernel(*handle, function);
}
CACHALOT_SIMULATOR_EXPORT void __cudaRegisterVar(void**, char* host, char*, const char*, int, std::size_t bytes, int,
                                                 int) {
  register_variable(host, bytes);
}
CACHALOT_SIMULATOR_EXPORT void __cudaRegisterManagedVar(void**, void** host, char*, const char*, int, std::size_t bytes,
                                                        int, int) {
  *host = register_variable(host, bytes).start;
}
CACHALOT_SIMULATOR_EXPORT void __cudaRegisterHostVar(void**, const char*, char*, std::size_t) {}
CACHALOT_SIMULATOR_EXPORT void __cudaRegisterUnifiedTable(void**, void*) {}

CACHALOT_SIMULATOR_EXPORT unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, std::size_t shared_bytes,
                                                               CUstream_st* stream) {
  return this_thread().launches.push({grid, block, shared_bytes, stream}) ? 0 : cudaErrorLaunchOutOfResources;
}

CACHALOT_SIMULATOR_EXPORT cudaError_t __cudaPopCallConfiguration(dim3* grid, dim3* block, std::size_t* shared_bytes,
                                                                 void* stream) {
  auto& launches = this_thread().launches;
  if (launches.empty()) return cudaErrorMissingConfiguration;
  const LaunchShape shape = launches.pop();
  *grid = shape.grid;
  *block = shape.block;
  *shared_bytes = shape.shared_bytes;
  *static_cast<void**>(stream) = shape.stream;
  return cudaSuccess;
}

CACHALOT_SIMULATOR_EXPORT cudaError_t __cudaGetKernel(cudaKernel_t* kernel, const void* function) {
  *kernel = static_cast<cudaKernel_t>(const_cast<void*>(function));
  return cudaSuccess;
}

CACHALOT_SIMULATOR_EXPORT cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 block, void**,
                                                         std::size_t shared_bytes, cudaStream_t stream) {
  return launch(kernel, grid, block, shared_bytes, stream);
}

extern "C" {

// ---- Launches -------------------------------------------------------------------------------------------------------

cudaError_t cudaLaunchKernel(const void* function, dim3 grid, dim3 block, void**, size_t shared_bytes,
                             cudaStream_t stream) {
  return launch(function, grid, block, shared_bytes, stream);
}

cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t* config, const void* function, void**) {
  return launch(function, config->gridDim, config->blockDim, config->dynamicSmemBytes, config->stream);
}

cudaError_t cudaLaunchCooperativeKernel(const void* function, dim3 grid, dim3 block, void**, size_t shared_bytes,
                                        cudaStream_t stream) {
  return launch(function, grid, block, shared_bytes, stream);
}

// ---- Kernels --------------------------------------------------------------------------------------------------------

cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, const void* function) {
  return runtime_call([&](Process& process) { *attributes = kernel_attributes(*process.config().gpu, function); });
}

cudaError_t cudaFuncSetAttribute(const void*, cudaFuncAttribute, int) {
  return runtime_call([](Process&) {});
}

cudaError_t cudaFuncSetCacheConfig(const void*, cudaFuncCache) {
  return runtime_call([](Process&) {});
}

cudaError_t cudaGetFuncBySymbol(cudaFunction_t* function, const void* symbol) {
  return runtime_call([&](Process&) { *function = static_cast<cudaFunction_t>(const_cast<void*>(symbol)); });
}

cudaError_t cudaGetKernel(cudaKernel_t* kernel, const void* function) { return __cudaGetKernel(kernel, function); }

cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, const void*, int block_threads,
                                                          size_t shared_bytes) {
  return occupancy(blocks, block_threads, shared_bytes);
}

cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* blocks, const void*, int block_threads,
                                                                   size_t shared_bytes, unsigned int) {
  return occupancy(blocks, block_threads, shared_bytes);
}

cudaError_t cudaOccupancyAvailableDynamicSMemPerBlock(size_t* bytes, const void*, int blocks, int) {
  return runtime_call([&](Process& process) {
    if (blocks <= 0) return cudaErrorInvalidValue;
    *bytes = process.config().gpu->shared_per_multiprocessor / static_cast<std::size_t>(blocks);
    return cudaSuccess;
  });
}

cudaError_t cudaOccupancyMaxActiveClusters(int* clusters, const void*, const cudaLaunchConfig_t* config) {
  return runtime_call([&](Process& process) {
    const dim3 block = config->blockDim;
    const int blocks =
        active_blocks(*process.config().gpu, static_cast<int>(block.x * block.y * block.z), config->dynamicSmemBytes);
    *clusters = blocks * process.config().gpu->multiprocessors / kMostBlocksOfCluster;
  });
}

cudaError_t cudaOccupancyMaxPotentialClusterSize(int* blocks, const void*, const cudaLaunchConfig_t*) {
  return runtime_call([&](Process&) { *blocks = kMostBlocksOfCluster; });
}

// ---- Device variables -----------------------------------------------------------------------------------------------

cudaError_t cudaGetSymbolAddress(void** pointer, const void* symbol) {
  return runtime_call([&](Process& process) { *pointer = variable_at(process, symbol).start; });
}

cudaError_t cudaGetSymbolSize(size_t* bytes, const void* symbol) {
  return runtime_call([&](Process& process) { *bytes = variable_at(process, symbol).bytes; });
}

cudaError_t cudaMemcpyToSymbolAsync(const void* symbol, const void* from, size_t bytes, size_t offset, cudaMemcpyKind,
                                    cudaStream_t stream) {
  return copy_variable(symbol, bytes, offset, nullptr, from, stream);
}

cudaError_t cudaMemcpyFromSymbolAsync(void* to, const void* symbol, size_t bytes, size_t offset, cudaMemcpyKind,
                                      cudaStream_t stream) {
  return copy_variable(symbol, bytes, offset, to, nullptr, stream);
}

cudaError_t cudaMemcpyToSymbol(const void* symbol, const void* from, size_t bytes, size_t offset, cudaMemcpyKind kind) {
  const cudaError_t error = cudaMemcpyToSymbolAsync(symbol, from, bytes, offset, kind, nullptr);
  return error == cudaSuccess ? cudaStreamSynchronize(nullptr) : error;
}

cudaError_t cudaMemcpyFromSymbol(void* to, const void* symbol, size_t bytes, size_t offset, cudaMemcpyKind kind) {
  const cudaError_t error = cudaMemcpyFromSymbolAsync(to, symbol, bytes, offset, kind, nullptr);
  return error == cudaSuccess ? cudaStreamSynchronize(nullptr) : error;
}

}  // extern "C"

CACHALOT_SIMULATOR_PER_THREAD(__cudaLaunchKernel, ptsz)
CACHALOT_SIMULATOR_PER_THREAD(cudaLaunchCooperativeKernel, ptsz)
CACHALOT_SIMULATOR_PER_THREAD(cudaLaunchKernel, ptsz)
CACHALOT_SIMULATOR_PER_THREAD(cudaLaunchKernelExC, ptsz)
CACHALOT_SIMULATOR_PER_THREAD(cudaMemcpyFromSymbol, ptds)
CACHALOT_SIMULATOR_PER_THREAD(cudaMemcpyFromSymbolAsync, ptsz)
CACHALOT_SIMULATOR_PER_THREAD(cudaMemcpyToSymbol, ptds)
CACHALOT_SIMULATOR_PER_THREAD(cudaMemcpyToSymbolAsync, ptsz)
