// What every entry point does around its own work: finds the process, locks it, turns exceptions into error codes.
#pragma once

#include <new>
#include <utility>

#include "cachalot/errors.h"
#include "simulator/abi.h"
#include "simulator/process.h"

namespace cachalot::simulator {

template <typename Body>
cudaError_t guarded(Body&& body) noexcept {
  cudaError_t error = cudaSuccess;
  Process* process = Process::get(error);
  if (!process) return error;
  const Lock lock(process->mutex);
  try {
    error = body(*process);
  } catch (const CudaError& failure) {
    error = static_cast<cudaError_t>(failure.code());
  } catch (const std::bad_alloc&) {
    error = cudaErrorMemoryAllocation;
  }
  process->settle();
  return error;
}

// A function of the runtime: its failure is the thread's last error.
template <typename Body>
cudaError_t runtime_call(Body&& body) noexcept {
  const cudaError_t error = guarded(std::forward<Body>(body));
  if (error != cudaSuccess) [[unlikely]]
    this_thread().last_error = error;
  return error;
}

// A function of the driver. The numbers of the codes are the runtime's.
template <typename Body>
CUresult driver_call(Body&& body) noexcept {
  return static_cast<CUresult>(guarded(std::forward<Body>(body)));
}

}  // namespace cachalot::simulator
