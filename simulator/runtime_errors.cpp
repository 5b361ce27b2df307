// Names and texts of error codes.
#include <algorithm>
#include <array>

#include "simulator/abi.h"

namespace {

struct ErrorText {
  int code;
  const char* runtime_name;
  const char* driver_name;
  const char* text;
};

constexpr ErrorText kErrors[] = {
#define ERROR(code, runtime_name, driver_name, text) {code, runtime_name, driver_name, text},
#include "simulator/errors.inc"
#undef ERROR
};

const ErrorText* find_error(int code) {
  const auto* at = std::find_if(std::begin(kErrors), std::end(kErrors), [&](const auto& e) { return e.code == code; });
  return at == std::end(kErrors) ? nullptr : at;
}

constexpr auto kUnknown = "unrecognized error code";

}  // namespace

extern "C" {

const char* cudaGetErrorName(cudaError_t error) {
  const ErrorText* found = find_error(error);
  return found ? found->runtime_name : kUnknown;
}

const char* cudaGetErrorString(cudaError_t error) {
  const ErrorText* found = find_error(error);
  return found ? found->text : kUnknown;
}

CUresult cuGetErrorName(CUresult error, const char** name) {
  const ErrorText* found = find_error(error);
  *name = found ? found->driver_name : nullptr;
  return *name ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuGetErrorString(CUresult error, const char** text) {
  const ErrorText* found = find_error(error);
  *text = found && found->driver_name ? found->text : nullptr;
  return *text ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

}  // extern "C"
