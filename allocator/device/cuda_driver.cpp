#include "device/cuda_driver.h"

#include <dlfcn.h>

#include <optional>
#include <string>

#include "cachalot/errors.h"

CACHALOT_BEGIN

namespace {

// dlopen gives the driver that the process has loaded already, if it has: also a simulated one under the driver's name.
std::optional<CudaDriver> load_driver() {
  void* const library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return std::nullopt;
  return std::optional<CudaDriver>(library);
}

// The version of CUDA that the driver serves: "11.4".
std::string cuda_version_of(void* library) {
  const auto get_version = reinterpret_cast<PFN_cuDriverGetVersion_v2020>(dlsym(library, "cuDriverGetVersion"));
  int version = 0;
  if (get_version == nullptr || get_version(&version) != CUDA_SUCCESS) return "unknown version";
  return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}

}  // namespace

CudaDriver::Symbol CudaDriver::optional(const char* name) const { return {dlsym(library_, name)}; }

CudaDriver::Symbol CudaDriver::required(const char* name) const {
  const Symbol symbol = optional(name);
  if (symbol.address != nullptr) return symbol;
  throw CudaError("dlsym", static_cast<int>(CUDA_ERROR_NOT_SUPPORTED),
                  std::string("the driver has no ") + name +
                      ": cachalot needs a driver of CUDA 11.0 or newer, and this is " + cuda_version_of(library_));
}

const CudaDriver* find_driver() {
  static const std::optional<CudaDriver> found = load_driver();
  return found ? &*found : nullptr;
}

const CudaDriver& driver() {
  static const CudaDriver& found = *find_driver();
  return found;
}

void check(const char* call, CUresult result) {
  if (result == CUDA_SUCCESS) return;
  const char* name = nullptr;
  const char* description = nullptr;
  if (driver().get_error_name(result, &name) != CUDA_SUCCESS || name == nullptr) name = "unknown";
  std::string text = name;
  if (driver().get_error_string(result, &description) == CUDA_SUCCESS && description != nullptr) {
    text += std::string(", ") + description;
  }
  throw CudaError(call, static_cast<int>(result), text);
}

CACHALOT_END
