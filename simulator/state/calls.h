// The frame of every entry point around its own work: it finds the process, locks it, and turns exceptions into error
// codes. A few entry points that only read the thread's own state do not lock.
#pragma once

#include <cstddef>
#include <new>
#include <tuple>
#include <type_traits>
#include <utility>

#include "cachalot/errors.h"
#include "simulator/base/end_of_process.h"
#include "simulator/base/lock.h"
#include "simulator/base/thread_state.h"
#include "simulator/base/watch.h"
#include "simulator/models/cuda_abi.h"
#include "simulator/state/simulated_process.h"

namespace cachalot::simulator {

// The functions of the runtime under their names for programs that are compiled with a default stream for each thread.

// While it lives, no stream means the thread's own, as cudaStreamPerThread does.
class OwnDefaultStream {
 public:
  OwnDefaultStream() { this_thread().has_own_default_stream = true; }
  ~OwnDefaultStream() { this_thread().has_own_default_stream = false; }
  OwnDefaultStream(const OwnDefaultStream&) = delete;
  OwnDefaultStream& operator=(const OwnDefaultStream&) = delete;
};

template <auto kFunction>
struct PerThread;

template <typename Result, typename... Parameters, Result (*kFunction)(Parameters...)>
struct PerThread<kFunction> {
  static Result call(Parameters... arguments) {
    const OwnDefaultStream own;
    return kFunction(arguments...);
  }
};

// Exceptions become error codes.
//
// Returns what `body` returns, success if it returns nothing, or the code of what it throws, of which watch is told.
template <typename Body>
cudaError_t error_of(Watch& watch, Body&& body) noexcept {
  try {
    if constexpr (!std::is_void_v<std::invoke_result_t<Body>>) return body();
    body();
    return cudaSuccess;
  } catch (const CudaError& failure) {
    watch.note(failure);
    return static_cast<cudaError_t>(failure.code());
  } catch (const std::bad_alloc&) {
    return cudaErrorMemoryAllocation;
  } catch (...) {
    return cudaErrorUnknown;
  }
}

// Returns the process. Null, with the error that the call must return: there is none, or the thread may not call now.
inline Process* enter(cudaError_t& error) noexcept {
  Process* process = Process::get(error);
  if (!process) return nullptr;
  if (ending_thread.load(std::memory_order_relaxed) != 0) [[unlikely]]
    wait_for_end();
  if (!this_thread().in_host_function) [[likely]]
    return process;
  error = cudaErrorNotPermitted;
  return nullptr;
}

template <typename Body>
cudaError_t guarded(Body&& body) noexcept {
  cudaError_t error = cudaSuccess;
  Process* process = enter(error);
  if (!process) return error;
  const Lock lock(process_mutex);
  error = error_of(process->watch(), [&] { return body(*process); });
  const cudaError_t late = process->settle();
  return error == cudaSuccess ? late : error;
}

// A function of the runtime: its failure is the thread's last error.
template <typename Body>
cudaError_t runtime_call(Body&& body) noexcept {
  const cudaError_t error = guarded(std::forward<Body>(body));
  if (error != cudaSuccess) [[unlikely]]
    this_thread().last_error = error;
  return error;
}

// A function of the runtime that reads what is the thread's own, and so takes no lock: PyTorch calls cudaGetDevice in each
// allocation, where a lock would cost more than a driver's whole call. It takes no time of the devices, so nothing falls due
// at its end.
template <typename Body>
cudaError_t unlocked_runtime_call(Body&& body) noexcept {
  cudaError_t error = cudaSuccess;
  if (enter(error)) [[likely]]
    body();
  else
    this_thread().last_error = error;
  return error;
}

// A function of the driver. The numbers of the codes are the runtime's.
template <typename Body>
CUresult driver_call(Body&& body) noexcept {
  return static_cast<CUresult>(guarded(std::forward<Body>(body)));
}

// A function of the driver that needs a current context.
template <typename Body>
CUresult call_in_context(const char* call, Body&& body, ContextRule rule = ContextRule::documented) noexcept {
  return driver_call([&](Process& process) {
    process.contexts().require(call, rule);
    return body(process);
  });
}

// A function of virtual memory, which needs one by the strictest rule only.
template <typename Body>
CUresult call_virtual(const char* call, Body&& body) noexcept {
  return call_in_context(call, std::forward<Body>(body), ContextRule::all);
}

// A function of the driver that does what one of the runtime does, and leaves the runtime's last error alone.
template <typename... Parameters>
CUresult by_runtime(cudaError_t (*function)(Parameters...), std::type_identity_t<Parameters>... arguments) noexcept {
  const cudaError_t last_error = this_thread().last_error;
  const cudaError_t error = function(arguments...);
  this_thread().last_error = last_error;
  return static_cast<CUresult>(error);
}

template <typename... Parameters>
CUresult by_runtime_in_context(const char* call, cudaError_t (*function)(Parameters...),
                               std::type_identity_t<Parameters>... arguments) noexcept {
  const CUresult error = call_in_context(call, [](Process&) {});
  return error == CUDA_SUCCESS ? by_runtime(function, arguments...) : error;
}

// The driver's addresses are numbers, the runtime's pointers.
inline void* pointer(CUdeviceptr address) { return reinterpret_cast<void*>(address); }

// The parameters of a function that CUDA's headers declare.
template <typename Function>
struct Signature;
template <typename Result, typename... Parameters>
struct Signature<Result(Parameters...)> {
  template <std::size_t index>
  using Parameter = std::tuple_element_t<index, std::tuple<Parameters...>>;
};

// An argument as another function of CUDA takes it: driver and runtime have their own types for the same values and structs.
template <typename To, typename From>
To argument_as(From argument) {
  if constexpr (std::is_convertible_v<From, To>) {
    return argument;
  } else if constexpr (std::is_enum_v<To>) {
    return static_cast<To>(argument);
  } else {
    if constexpr (std::is_pointer_v<From> && std::is_object_v<std::remove_pointer_t<From>>)
      static_assert(sizeof(std::remove_pointer_t<From>) == sizeof(std::remove_pointer_t<To>));
    return reinterpret_cast<To>(argument);
  }
}

}  // namespace cachalot::simulator

// The first parameters of `function`, and as many arguments for `function` made of them.
#define CACHALOT_PARAMETER(function, index) \
  cachalot::simulator::Signature<decltype(function)>::Parameter<index> p##index
#define CACHALOT_PARAMETERS_1(function) CACHALOT_PARAMETER(function, 0)
#define CACHALOT_PARAMETERS_2(function) CACHALOT_PARAMETERS_1(function), CACHALOT_PARAMETER(function, 1)
#define CACHALOT_PARAMETERS_3(function) CACHALOT_PARAMETERS_2(function), CACHALOT_PARAMETER(function, 2)
#define CACHALOT_PARAMETERS_4(function) CACHALOT_PARAMETERS_3(function), CACHALOT_PARAMETER(function, 3)
#define CACHALOT_PARAMETERS_5(function) CACHALOT_PARAMETERS_4(function), CACHALOT_PARAMETER(function, 4)
#define CACHALOT_PARAMETERS_6(function) CACHALOT_PARAMETERS_5(function), CACHALOT_PARAMETER(function, 5)
#define CACHALOT_PARAMETERS_7(function) CACHALOT_PARAMETERS_6(function), CACHALOT_PARAMETER(function, 6)
#define CACHALOT_PARAMETERS_8(function) CACHALOT_PARAMETERS_7(function), CACHALOT_PARAMETER(function, 7)
#define CACHALOT_ARGUMENT(function, index) \
  cachalot::simulator::argument_as<cachalot::simulator::Signature<decltype(function)>::Parameter<(index)>>(p##index)
#define CACHALOT_ARGUMENTS_1(function) CACHALOT_ARGUMENT(function, 0)
#define CACHALOT_ARGUMENTS_2(function) CACHALOT_ARGUMENTS_1(function), CACHALOT_ARGUMENT(function, 1)
#define CACHALOT_ARGUMENTS_3(function) CACHALOT_ARGUMENTS_2(function), CACHALOT_ARGUMENT(function, 2)
#define CACHALOT_ARGUMENTS_4(function) CACHALOT_ARGUMENTS_3(function), CACHALOT_ARGUMENT(function, 3)
#define CACHALOT_ARGUMENTS_5(function) CACHALOT_ARGUMENTS_4(function), CACHALOT_ARGUMENT(function, 4)
#define CACHALOT_ARGUMENTS_6(function) CACHALOT_ARGUMENTS_5(function), CACHALOT_ARGUMENT(function, 5)
#define CACHALOT_ARGUMENTS_7(function) CACHALOT_ARGUMENTS_6(function), CACHALOT_ARGUMENT(function, 6)
#define CACHALOT_ARGUMENTS_8(function) CACHALOT_ARGUMENTS_7(function), CACHALOT_ARGUMENT(function, 7)

// The driver's function `name`, which does what `function` of the runtime does: with its `count` parameters, then with what
// follows.
#define CACHALOT_SIMULATOR_BY_RUNTIME(count, name, function, ...)                                 \
  CUresult name(CACHALOT_PARAMETERS_##count(name)) {                                              \
    return by_runtime(function, CACHALOT_ARGUMENTS_##count(function) __VA_OPT__(, ) __VA_ARGS__); \
  }
#define CACHALOT_SIMULATOR_BY_RUNTIME_IN_CONTEXT(count, name, function, ...)                                           \
  CUresult name(CACHALOT_PARAMETERS_##count(name)) {                                                                   \
    return by_runtime_in_context(__func__, function, CACHALOT_ARGUMENTS_##count(function) __VA_OPT__(, ) __VA_ARGS__); \
  }

// The function with suffix _ptsz or _ptds. A symbol for a function of a template takes an indirect one, which the dynamic linker
// resolves; the resolver may be called before this library is relocated, and only computes an address.
#define CACHALOT_SIMULATOR_PER_THREAD(function, suffix)                                            \
  extern "C" {                                                                                     \
  __attribute__((used)) static decltype(&(function)) resolve_##function##_##suffix() {             \
    return &cachalot::simulator::PerThread<&(function)>::call;                                     \
  }                                                                                                \
  __attribute__((visibility("default"),                                                            \
                 ifunc("resolve_" #function "_" #suffix))) decltype(function) function##_##suffix; \
  }
