// The driver's functions by name, for cudaGetDriverEntryPoint, cuGetProcAddress and their kin.
#include <algorithm>
#include <iterator>
#include <string_view>

#include "simulator/base/redirection.h"
#include "simulator/base/static_runtimes.h"
#include "simulator/base/thread_state.h"
#include "simulator/state/calls.h"

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
#define PER_THREAD(symbol, suffix)
constexpr Form kForms[] = {
#include "simulator/driver/entry_points.inc"
};
#undef PER_THREAD
#undef FORM_4
#undef FORM_3
#undef FORM_2
#undef FORMS
#undef FORM

// The symbols that have another one, with a suffix, for programs with a default stream for each thread.
struct PerThreadForm {
  std::string_view symbol;
  const char* suffixed;
};
#define FORMS(name, ...)
#define FORM(name, ...)
#define PER_THREAD(symbol, suffix) {#symbol, #symbol #suffix},
constexpr PerThreadForm kPerThreadForms[] = {
#include "simulator/driver/entry_points.inc"
};
#undef PER_THREAD
#undef FORM
#undef FORMS

struct Found {
  void* function = nullptr;
  bool is_newer = false;  // than the version asked for
};

bool is_function_of_driver(std::string_view name) { return name.starts_with("cu") && !name.starts_with("cuda"); }

void* function_of(const char* symbol, bool per_thread) {
  const auto is_it = [&](const PerThreadForm& form) { return per_thread && form.symbol == symbol; };
  const auto* form = std::find_if(std::begin(kPerThreadForms), std::end(kPerThreadForms), is_it);
  return own_function(form == std::end(kPerThreadForms) ? symbol : form->suffixed);
}

// The newest form of those that are not newer than `version`; they follow each other, the oldest first. A name with
// its form, cuMemAlloc_v2, and one that the tables of CUDA 13.0 do not have are looked up as they are.
Found find_entry_point(const char* name, unsigned int version, unsigned long long flags) {
  static_assert(CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM == int{cudaEnablePerThreadDefaultStream});
  const bool per_thread = (flags & cudaEnablePerThreadDefaultStream) != 0;
  const auto is_named = [&](const Form& form) { return form.name == name; };
  const auto* form = std::find_if(std::begin(kForms), std::end(kForms), is_named);
  if (form == std::end(kForms)) return {is_function_of_driver(name) ? own_function(name) : nullptr};
  Found found{.is_newer = true};
  for (; form != std::end(kForms) && is_named(*form) && form->version <= version; ++form) {
    if (void* function = function_of(form->symbol, per_thread)) found = {function};
  }
  return found;
}

}  // namespace

cudaError_t cachalot::simulator::driver_entry_point(const char* name, void** function, unsigned int version,
                                                    unsigned long long flags,
                                                    cudaDriverEntryPointQueryResult* result) noexcept {
  if (flags == cudaEnableDefault && this_thread().has_own_default_stream) flags = cudaEnablePerThreadDefaultStream;
  const Found found = find_entry_point(name, version, flags);
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
                                             unsigned long long flags, cudaDriverEntryPointQueryResult* result) {
  return driver_entry_point(name, function, version, flags, result);
}

cudaError_t cudaGetDriverEntryPoint(const char* name, void** function, unsigned long long flags,
                                    cudaDriverEntryPointQueryResult* result) {
  return driver_entry_point(name, function, kCudaVersion, flags, result);
}

CUresult cuGetProcAddress(const char* name, void** function, int version, cuuint64_t flags,
                          CUdriverProcAddressQueryResult* result) {
  const Found found = find_entry_point(name, static_cast<unsigned int>(version), flags);
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

// These look for the form of a default stream for each thread, unless the flags say otherwise.
extern "C" __attribute__((visibility("default"))) cudaError_t cudaGetDriverEntryPoint_ptsz(
    const char* name, void** function, unsigned long long flags, cudaDriverEntryPointQueryResult* result) {
  const OwnDefaultStream own;
  return driver_entry_point(name, function, kCudaVersion, flags, result);
}
CACHALOT_SIMULATOR_PER_THREAD(cudaGetDriverEntryPointByVersion, ptsz)
