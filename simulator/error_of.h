// Exceptions become error codes.
#pragma once

#include <new>

#include "cachalot/errors.h"
#include "simulator/abi.h"
#include "simulator/watch.h"

namespace cachalot::simulator {

// Returns what `body` returns, or the code of what it throws, of which watch is told.
template <typename Body>
cudaError_t error_of(Watch& watch, Body&& body) noexcept {
  try {
    return body();
  } catch (const CudaError& failure) {
    watch.note(failure);
    return static_cast<cudaError_t>(failure.code());
  } catch (const std::bad_alloc&) {
    return cudaErrorMemoryAllocation;
  } catch (...) {
    return cudaErrorUnknown;
  }
}

}  // namespace cachalot::simulator
