// The driver's functions by name, for cudaGetDriverEntryPoint, cuGetProcAddress and their kin.
#include <algorithm>
#include <iterator>
#include <string_view>

#include "simulator/base/redirection.h"
#include "simulator/base/static_runtimes.h"
#include "simulator/base/thread_state.h"

using namespace cachalot::simulator;

namespace {

struct Form {
  std::string_view name;
  unsigned int version;
  const char* symbol;
};

// `name` is text from the second form on, as cuda.h makes macros of some.
#define FORM(name, version, symbol) {#name, version, #symbol},
#define FORMS(name, version, ...) {#name, version, #name}, __VA_OPT__(FORM_2(#name, __VA_ARGS__))
#define FORM_2(name, version, ...) {name, version, name "_v2"}, __VA_OPT__(FORM_3(name, __VA_ARGS__))
#define FORM_3(name, version, ...) {name, version, name "_v3"}, __VA_OPT__(FORM_4(name, __VA_ARGS__))
#define FORM_4(name, version) {name, version, name "_v4"},
constexpr Form kForms[] = {
#include "simulator/driver/entry_points.inc"
};
#undef FORM_4
#undef FORM_3
#undef FORM_2
#undef FORMS
#undef FORM

struct Found {
  void* function = nullptr;
  bool is_newer = false;  // than the version asked for
};

bool is_function_of_driver(std::string_view name) { return name.starts_with("cu") && !name.starts_with("cuda"); }

// The newest form of those that are not newer than `version`; they follow each other, the oldest first. A name with
// its form, cuMemAlloc_v2, and one that the tables of CUDA 13.0 do not have are looked up as they are.
Found find_entry_point(const char* name, unsigned int version) {
  const auto is_named = [&](const Form& form) { return form.name == name; };
  const auto* form = std::find_if(std::begin(kForms), std::end(kForms), is_named);
  if (form == std::end(kForms)) return {is_function_of_driver(name) ? own_function(name) : nullptr};
  Found found{.is_newer = true};
  for (; form != std::end(kForms) && is_named(*form) && form->version <= version; ++form) {
    if (void* function = own_function(form->symbol)) found = {function};
  }
  return found;
}

}  // namespace

cudaError_t cachalot::simulator::driver_entry_point(const char* name, void** function, unsigned int version,
                                                    cudaDriverEntryPointQueryResult* result) noexcept {
  const Found found = find_entry_point(name, version);
  *function = found.function;
  if (result) {
    *result = found.function   ? cudaDriverEntryPointSuccess
              : found.is_newer ? cudaDriverEntryPointVersionNotSufficent
                               : cudaDriverEntryPointSymbolNotFound;
  }
  if (found.function || result) return cudaSuccess;
  this_thread().last_error = cudaErrorSymbolNotFound;
  return cudaErrorSymbolNotFound;
}

extern "C" {

cudaError_t cudaGetDriverEntryPointByVersion(const char* name, void** function, unsigned int version,
                                             unsigned long long, cudaDriverEntryPointQueryResult* result) {
  return driver_entry_point(name, function, version, result);
}

cudaError_t cudaGetDriverEntryPoint(const char* name, void** function, unsigned long long,
                                    cudaDriverEntryPointQueryResult* result) {
  return driver_entry_point(name, function, kCudaVersion, result);
}

CUresult cuGetProcAddress(const char* name, void** function, int version, cuuint64_t,
                          CUdriverProcAddressQueryResult* result) {
  const Found found = find_entry_point(name, static_cast<unsigned int>(version));
  *function = found.function;
  if (result) {
    *result = found.function   ? CU_GET_PROC_ADDRESS_SUCCESS
              : found.is_newer ? CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT
                               : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
  }
  return found.function ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

// The tables are not documented. The runtime that programs link in statically asks for them, and tools that profile.
CUresult cuGetExportTable(const void** table, const CUuuid*) {
  note_hidden_runtime(__builtin_return_address(0));
  *table = nullptr;
  return CUDA_ERROR_NOT_FOUND;
}

}  // extern "C"

// Neither has a stream.
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"  // programs of before CUDA 13 ask by it
extern "C"
    __attribute__((visibility("default"),
                   alias("cudaGetDriverEntryPoint"))) decltype(cudaGetDriverEntryPoint) cudaGetDriverEntryPoint_ptsz;
#pragma GCC diagnostic pop
extern "C" __attribute__((visibility("default"),
                          alias("cudaGetDriverEntryPointByVersion"))) decltype(cudaGetDriverEntryPointByVersion)
    cudaGetDriverEntryPointByVersion_ptsz;
