// cuBLAS, cuBLASLt, cuDNN, cuSPARSE, cuSPARSELt, cuSOLVER, cuFFT and cuRAND: every function is there, succeeds and does
// nothing. Functions that ask for a size of memory return 0, which is noted; functions that create an object return a
// handle.
//
// The libraries' headers are not needed: in C's calling conventions on x86-64 and on Arm (AAPCS64) the caller cleans up, so that a
// function may take more arguments than it is given, and read none but those it knows. In both, integers and pointers are
// counted by themselves, whatever floating-point numbers stand between them: first in registers (6 and 8), then in places of 8
// bytes on the stack. So a position is the same on both; that would not hold of a struct of more than 16 bytes given by value,
// of which Arm counts the address, and no function that has outputs takes one.
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string_view>
#include <vector>

#include "base/json_writer.h"
#include "simulator/base/registry.h"
#include "simulator/base/report.h"
#include "simulator/libraries/cudnn_planner.h"
#include "simulator/libraries/functions.h"
#include "simulator/state/calls.h"

namespace cachalot::simulator {
namespace {

// Unknown workspaces: a program asks cuSOLVER, cuSPARSE or cuFFT for the size that it must allocate, and gets 0.

// The libraries, by how the names of their functions begin; cuDNN is not among them, since it plans by itself.
struct AskedLibrary {
  std::string_view prefix;
  std::string_view name;
};
constexpr std::array kAskedLibraries{AskedLibrary{"cusolver", "cuSOLVER"}, AskedLibrary{"cusparseLt", "cuSPARSELt"},
                                     AskedLibrary{"cusparse", "cuSPARSE"}, AskedLibrary{"cufft", "cuFFT"}};

// Returns the place among kAskedLibraries of a function's library; their number if it is another one.
constexpr std::size_t library_of(std::string_view function) {
  std::size_t place = 0;
  while (place < kAskedLibraries.size() && !function.starts_with(kAskedLibraries[place].prefix)) ++place;
  return place;
}

// Returns whether the function tells how large a workspace on the device must be, or makes a plan that has one.
constexpr bool asks_for_workspace(std::string_view function) {
  constexpr std::string_view kParts[] = {"_bufferSize", "GetWorkspace", "workEstimation", "SpGEMM_compute"};
  constexpr std::string_view kPartsOfFft[] = {"cufftMakePlan", "cufftXtMakePlan", "cufftPlan", "GetSize", "Estimate"};
  if (library_of(function) == kAskedLibraries.size() || function.ends_with("Host")) return false;
  for (const std::string_view part : kParts) {
    if (function.find(part) != std::string_view::npos) return true;
  }
  for (const std::string_view part : kPartsOfFft) {
    if (function.starts_with("cufft") && function.find(part) != std::string_view::npos) return true;
  }
  return false;
}

// For each library, whether it was asked. Needs no destructor, as the report is written late.
std::array<std::atomic<bool>, kAskedLibraries.size()> asked{};

// The program has called such a function. Thread-safe.
void note_unknown_workspace(std::string_view function) {
  asked[library_of(function)].store(true, std::memory_order_relaxed);
}

constexpr std::size_t kArguments = 32;  // more than any function has

template <typename Value>
void give(std::uintptr_t argument, Value value) {
  if (argument != 0) *reinterpret_cast<Value*>(argument) = value;
}

template <std::size_t Position>
struct Handle {
  static_assert(Position < kArguments);
  static void give_in(const std::uintptr_t* arguments) { give(arguments[Position], fresh_handle()); }
};

template <std::size_t Position>
struct Size {
  static_assert(Position < kArguments);
  static void give_in(const std::uintptr_t* arguments) { give(arguments[Position], std::size_t{0}); }
};

template <std::size_t Position>
struct Int {
  static_assert(Position < kArguments);
  static void give_in(const std::uintptr_t* arguments) { give(arguments[Position], int{0}); }
};

template <std::size_t Position>
struct Version {
  static_assert(Position < kArguments);
  static void give_in(const std::uintptr_t* arguments) { give(arguments[Position], kMathLibraryVersion); }
};

// An int in device memory: the status of a factorization. 0 is success.
template <std::size_t Position>
struct DeviceInt {
  static_assert(Position < kArguments);
  static void give_in(const std::uintptr_t* arguments) {
    if (arguments[Position] != 0)
      cudaMemsetAsync(reinterpret_cast<void*>(arguments[Position]), 0, sizeof(int), nullptr);
  }
};

// Each library's "not supported".
constexpr int not_supported(std::string_view name) {
  if (name.starts_with("cudnn")) return 3000;   // CUDNN_STATUS_NOT_SUPPORTED
  if (name.starts_with("cublas")) return 15;    // CUBLAS_STATUS_NOT_SUPPORTED
  if (name.starts_with("cusparse")) return 10;  // CUSPARSE_STATUS_NOT_SUPPORTED
  if (name.starts_with("cusolver")) return 9;   // CUSOLVER_STATUS_NOT_SUPPORTED
  if (name.starts_with("cufft")) return 16;     // CUFFT_NOT_SUPPORTED
  return 999;                                   // CURAND_STATUS_INTERNAL_ERROR; it has no better one
}

int refuse(const char* name) {
  note_not_simulated(name);
  return not_supported(name);
}

template <typename... Outputs>
int nothing_but([[maybe_unused]] const std::uintptr_t* arguments) {
  (Outputs::give_in(arguments), ...);
  return 0;  // success, in each of the libraries
}

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
  const cudaError_t error = guarded([&](Process& process) { process.contexts().current().make_library(library); });
  if (error != cudaSuccess) return error == cudaErrorMemoryAllocation ? failures.no_memory : failures.not_initialized;
  if (handle != nullptr) *handle = fresh_handle();
  return 0;
}

}  // namespace

void write_unknown_workspaces(JsonWriter& json) {
  std::vector<std::string_view> names;
  for (std::size_t place = 0; place < kAskedLibraries.size(); ++place) {
    if (asked[place].load(std::memory_order_relaxed)) names.push_back(kAskedLibraries[place].name);
  }
  json.list(names);
}

}  // namespace cachalot::simulator

using namespace cachalot::simulator;

#define EXPORTED extern "C" __attribute__((visibility("default")))

#define REFUSED(name) \
  EXPORTED int name() { return refuse(#name); }

#define FUNCTION(name, ...)                                                                                        \
  EXPORTED int name(std::uintptr_t a0, std::uintptr_t a1, std::uintptr_t a2, std::uintptr_t a3, std::uintptr_t a4, \
                    std::uintptr_t a5, std::uintptr_t a6, std::uintptr_t a7, std::uintptr_t a8, std::uintptr_t a9, \
                    std::uintptr_t a10, std::uintptr_t a11, std::uintptr_t a12, std::uintptr_t a13,                \
                    std::uintptr_t a14, std::uintptr_t a15, std::uintptr_t a16, std::uintptr_t a17,                \
                    std::uintptr_t a18, std::uintptr_t a19, std::uintptr_t a20, std::uintptr_t a21,                \
                    std::uintptr_t a22, std::uintptr_t a23, std::uintptr_t a24, std::uintptr_t a25,                \
                    std::uintptr_t a26, std::uintptr_t a27, std::uintptr_t a28, std::uintptr_t a29,                \
                    std::uintptr_t a30, std::uintptr_t a31) {                                                      \
    const std::uintptr_t arguments[] = {                                                                           \
        a0,  a1,  a2,  a3,  a4,  a5,  a6,  a7,  a8,  a9,  a10, a11, a12, a13, a14, a15,                            \
        a16, a17, a18, a19, a20, a21, a22, a23, a24, a25, a26, a27, a28, a29, a30, a31};                           \
    if constexpr (asks_for_workspace(#name)) note_unknown_workspace(#name);                                        \
    return nothing_but<__VA_ARGS__>(arguments);                                                                    \
  }
#define FUNCTION_64(name, ...)              \
  FUNCTION(name __VA_OPT__(, ) __VA_ARGS__) \
  FUNCTION(name##_64 __VA_OPT__(, ) __VA_ARGS__)

#define FUNCTION_V2(name, ...)              \
  FUNCTION(name __VA_OPT__(, ) __VA_ARGS__) \
  FUNCTION_64(name##_v2 __VA_OPT__(, ) __VA_ARGS__)

// MACRO for types of floats and doubles, of complex numbers, and of both.
#define SD(MACRO, library, rest, ...)                \
  MACRO(library##S##rest __VA_OPT__(, ) __VA_ARGS__) \
  MACRO(library##D##rest __VA_OPT__(, ) __VA_ARGS__)
#define CZ(MACRO, library, rest, ...)                \
  MACRO(library##C##rest __VA_OPT__(, ) __VA_ARGS__) \
  MACRO(library##Z##rest __VA_OPT__(, ) __VA_ARGS__)
#define SDCZ(MACRO, library, rest, ...)               \
  SD(MACRO, library, rest __VA_OPT__(, ) __VA_ARGS__) \
  CZ(MACRO, library, rest __VA_OPT__(, ) __VA_ARGS__)

// And for solvers that refine what they factorized in a smaller type, of which the second letter is: H and K half, B and Y
// bfloat16, X and E TensorFloat, each of real and of complex numbers.
#define REFINED(MACRO, library, rest, ...)            \
  MACRO(library##ZZ##rest __VA_OPT__(, ) __VA_ARGS__) \
  MACRO(library##ZC##rest __VA_OPT__(, ) __VA_ARGS__) \
  MACRO(library##ZK##rest __VA_OPT__(, ) __VA_ARGS__) \
  MACRO(library##ZE##rest __VA_OPT__(, ) __VA_ARGS__) \
  MACRO(library##ZY##rest __VA_OPT__(, ) __VA_ARGS__) \
  MACRO(library##CC##rest __VA_OPT__(, ) __VA_ARGS__) \
  MACRO(library##CK##rest __VA_OPT__(, ) __VA_ARGS__) \
  MACRO(library##CE##rest __VA_OPT__(, ) __VA_ARGS__) \
  MACRO(library##CY##rest __VA_OPT__(, ) __VA_ARGS__) \
  MACRO(library##DD##rest __VA_OPT__(, ) __VA_ARGS__) \
  MACRO(library##DS##rest __VA_OPT__(, ) __VA_ARGS__) \
  MACRO(library##DH##rest __VA_OPT__(, ) __VA_ARGS__) \
  MACRO(library##DB##rest __VA_OPT__(, ) __VA_ARGS__) \
  MACRO(library##DX##rest __VA_OPT__(, ) __VA_ARGS__) \
  MACRO(library##SS##rest __VA_OPT__(, ) __VA_ARGS__) \
  MACRO(library##SH##rest __VA_OPT__(, ) __VA_ARGS__) \
  MACRO(library##SB##rest __VA_OPT__(, ) __VA_ARGS__) \
  MACRO(library##SX##rest __VA_OPT__(, ) __VA_ARGS__)

#include "simulator/libraries/functions.inc"
#undef REFINED
#undef SDCZ
#undef CZ
#undef SD
#undef FUNCTION_V2
#undef FUNCTION_64
#undef FUNCTION
#undef REFUSED

// ---- The few that hand back something else --------------------------------------------------------------------------

namespace {

// cublasLtMatmulHeuristicResult_t: an algorithm that needs no workspace.
struct HeuristicResult {
  std::uint64_t algorithm[8];
  std::size_t workspace_bytes;
  int status;
  float waves;
  int reserved[4];
};

}  // namespace

EXPORTED int cublasLtMatmulAlgoGetHeuristic(void*, void*, void*, void*, void*, void*, void*, int requested,
                                            HeuristicResult* results, int* returned) {
  constexpr int kInvalidValue = 7;  // CUBLAS_STATUS_INVALID_VALUE
  if (requested < 1) return kInvalidValue;
  results[0] = {};
  results[0].waves = 1;
  *returned = 1;
  return 0;
}

EXPORTED int cublasLtMatmulAlgoGetIds(void*, int, int, int, int, int, int, int requested, int* ids, int* returned) {
  *returned = requested > 0;
  if (requested > 0) ids[0] = 0;
  return 0;
}

EXPORTED std::size_t cublasLtGetVersion() { return kMathLibraryVersion; }
EXPORTED std::size_t cublasLtGetCudartVersion() { return kRuntimeVersion; }
EXPORTED std::size_t cudnnGetVersion() { return cudnn_version(); }
EXPORTED std::size_t cudnnGetMaxDeviceVersion() { return 1200; }
EXPORTED std::size_t cudnnGetCudartVersion() { return kRuntimeVersion; }

EXPORTED int cublasGetStream_v2(void*, void** stream) {
  return give(reinterpret_cast<std::uintptr_t>(stream), std::uintptr_t{0}), 0;
}
EXPORTED int cusolverDnGetStream(void*, void** stream) { return cublasGetStream_v2(nullptr, stream); }
EXPORTED int cusparseGetStream(void*, void** stream) { return cublasGetStream_v2(nullptr, stream); }
EXPORTED int cudnnGetStream(void*, void** stream) { return cublasGetStream_v2(nullptr, stream); }

EXPORTED const char* cublasGetStatusName(int status) {
  return status == 0 ? "CUBLAS_STATUS_SUCCESS" : "CUBLAS_STATUS_ERROR";
}
EXPORTED const char* cublasGetStatusString(int status) { return status == 0 ? "success" : "error"; }
EXPORTED const char* cublasLtGetStatusName(int status) { return cublasGetStatusName(status); }
EXPORTED const char* cublasLtGetStatusString(int status) { return cublasGetStatusString(status); }
EXPORTED const char* cudnnGetErrorString(int status) {
  return status == 0 ? "CUDNN_STATUS_SUCCESS" : "CUDNN_STATUS_ERROR";
}
EXPORTED void cudnnGetLastErrorString(char* message, std::size_t bytes) {
  if (const CudnnPlanner* planner = CudnnPlanner::get()) return planner->cudnn().last_error(message, bytes);
  if (bytes > 0) *message = '\0';
}
EXPORTED const char* cusparseGetErrorName(int status) {
  return status == 0 ? "CUSPARSE_STATUS_SUCCESS" : "CUSPARSE_STATUS_ERROR";
}
EXPORTED const char* cusparseGetErrorString(int status) { return status == 0 ? "success" : "error"; }
EXPORTED const char* cusparseLtGetErrorName(int status) { return cusparseGetErrorName(status); }
EXPORTED const char* cusparseLtGetErrorString(int status) { return cusparseGetErrorString(status); }

// libraryPropertyType: 0, 1 and 2 ask for the major version, the minor one and the patch.
EXPORTED int cudnnGetProperty(int property, int* value) {
  const int version = static_cast<int>(cudnn_version());
  const int parts[] = {version / 10000, version / 100 % 100, version % 100};
  *value = parts[property];
  return 0;
}
EXPORTED int cublasGetProperty(int property, int* value) {
  constexpr int kParts[] = {kMathLibraryVersion / 10000, kMathLibraryVersion / 100 % 100, kMathLibraryVersion % 100};
  *value = kParts[property];
  return 0;
}
EXPORTED int cublasLtGetProperty(int property, int* value) { return cublasGetProperty(property, value); }
EXPORTED int cusparseGetProperty(int property, int* value) { return cublasGetProperty(property, value); }
EXPORTED int cusparseLtGetProperty(int property, int* value) { return cublasGetProperty(property, value); }
EXPORTED int cusolverGetProperty(int property, int* value) { return cublasGetProperty(property, value); }
EXPORTED int cufftGetProperty(int property, int* value) { return cublasGetProperty(property, value); }
EXPORTED int curandGetProperty(int property, int* value) { return cublasGetProperty(property, value); }

// A plan of cuFFT is a number.
EXPORTED int cufftCreate(int* plan) { return give(reinterpret_cast<std::uintptr_t>(plan), 1), 0; }
EXPORTED int cufftPlan1d(int* plan, int, int, int) {
  note_unknown_workspace("cufftPlan1d");
  return cufftCreate(plan);
}
EXPORTED int cufftPlan2d(int* plan, int, int, int) { return cufftPlan1d(plan, 0, 0, 0); }
EXPORTED int cufftPlan3d(int* plan, int, int, int, int) { return cufftPlan1d(plan, 0, 0, 0); }
EXPORTED int cufftPlanMany(int* plan, int, int*, int*, int, int, int*, int, int, int, int) {
  return cufftPlan1d(plan, 0, 0, 0);
}

// The functions of cuBLAS, cuDNN, cuSOLVER and cuSPARSE by which the device is charged for a library, with the first handle there.
EXPORTED int cublasCreate_v2(std::uintptr_t* handle) { return create(ContextLibrary::cublas, kCublas, handle); }
EXPORTED int cublasLtCreate(std::uintptr_t* handle) { return create(ContextLibrary::cublas, kCublas, handle); }
EXPORTED int cudnnCreate(std::uintptr_t* handle) { return create(ContextLibrary::cudnn, kCudnn, handle); }
EXPORTED int cusolverDnCreate(std::uintptr_t* handle) { return create(ContextLibrary::cusolver, kCusolver, handle); }
EXPORTED int cusolverSpCreate(std::uintptr_t* handle) { return create(ContextLibrary::cusolver, kCusolver, handle); }
EXPORTED int cusparseCreate(std::uintptr_t* handle) { return create(ContextLibrary::cusparse, kCusparse, handle); }
