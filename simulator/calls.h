// What every entry point does around its own work: finds the process, locks it, turns exceptions into error codes.
// A few that only read what is the thread's own do not lock.
#pragma once

#include <type_traits>
#include <utility>

#include "simulator/abi.h"
#include "simulator/end_of_process.h"
#include "simulator/error_of.h"
#include "simulator/lock.h"
#include "simulator/per_thread.h"
#include "simulator/process.h"

namespace cachalot::simulator {

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
  const CUresult error = call_in_context(call, [](Process&) { return cudaSuccess; });
  return error == CUDA_SUCCESS ? by_runtime(function, arguments...) : error;
}

// The driver's addresses are numbers, the runtime's pointers.
inline void* pointer(CUdeviceptr address) { return reinterpret_cast<void*>(address); }

}  // namespace cachalot::simulator
