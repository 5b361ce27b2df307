#include "kernels/cuda_module.h"

#include <cstdio>
#include <map>
#include <mutex>
#include <string>
#include <utility>

#include "cachalot/errors.h"
#include "device/cuda_driver.h"
#include "kernels/batch.h"

CACHALOT_BEGIN

namespace {

// A driver without a compiler for this code: one that was taken out (containers may lack its library), switched off, or,
// since the code is of the oldest kind, one that no longer compiles that.
bool cannot_compile(CUresult result) {
  switch (result) {
    case CUDA_ERROR_INVALID_IMAGE:
    case CUDA_ERROR_NO_BINARY_FOR_GPU:
    case CUDA_ERROR_INVALID_PTX:
    case CUDA_ERROR_JIT_COMPILER_NOT_FOUND:
    case CUDA_ERROR_UNSUPPORTED_PTX_VERSION:
    case CUDA_ERROR_JIT_COMPILATION_DISABLED:
      return true;
    default:
      return false;
  }
}

void tell_that_none_is_loaded(const CudaDevice& device, CUresult result) {
  const char* name = nullptr;
  if (driver().get_error_name(result, &name) != CUDA_SUCCESS || name == nullptr) name = "unknown";
  std::fprintf(
      stderr,
      "cachalot: the driver does not compile the CUDA kernels for device %d (%s): patterns and moves are copied "
      "by the host\n",
      device.index(), name);
}

// Asking for an attribute loads the kernel: the first launch, which may be captured, need not.
CUfunction function_of(CUmodule module, const char* name) {
  CUfunction function = nullptr;
  check("cuModuleGetFunction", driver().module_get_function(&function, module, name));
  int registers = 0;
  check("cuFuncGetAttribute", driver().function_get_attribute(&registers, CU_FUNC_ATTRIBUTE_NUM_REGS, function));
  return function;
}

const CudaModule* load(const CudaDevice& device) {
  const RelaxedCapture relaxed;
  CUmodule module = nullptr;
  const CUresult result = driver().module_load(&module, kDeviceCode, 0, nullptr, nullptr);
  if (cannot_compile(result)) {
    tell_that_none_is_loaded(device, result);
    return nullptr;
  }
  if (result == CUDA_ERROR_OUT_OF_MEMORY) {
    throw OutOfMemory("device " + std::to_string(device.index()) + " has no memory for the CUDA kernels",
                      device.index(), 0);
  }
  check("cuModuleLoadDataEx", result);
  return new CudaModule{.fill = function_of(module, "cachalot_fill"),
                        .verify = function_of(module, "cachalot_verify"),
                        .move = function_of(module, "cachalot_move")};
}

// By device and its context's number.
struct LoadedModules {
  std::mutex mutex;
  std::map<std::pair<int, std::uint64_t>, const CudaModule*> modules;
};

// Never destroyed: static objects of the program may still use it.
LoadedModules& loaded_modules() {
  static auto& instance = *new LoadedModules;
  return instance;
}

}  // namespace

const CudaModule* module_for(CudaDevice& device) {
  const CudaContext::Current current(device.context());
  LoadedModules& loaded = loaded_modules();
  const std::lock_guard lock(loaded.mutex);
  const std::pair key(device.index(), device.context().id());
  const auto known = loaded.modules.find(key);
  if (known != loaded.modules.end()) return known->second;
  return loaded.modules[key] = load(device);
}

void launch(CUfunc_st* kernel, std::uint64_t blocks, Stream stream, void** arguments) {
  check("cuLaunchKernel", driver().launch_kernel(kernel, static_cast<unsigned>(blocks), 1, 1, kThreadsABlock, 1, 1, 0,
                                                 stream, arguments, nullptr));
}

CACHALOT_END
