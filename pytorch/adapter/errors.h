// cachalot's errors as torch's.
#pragma once

#include <c10/core/Allocator.h>
#include <c10/util/Exception.h>

#include <utility>

#include "cachalot/errors.h"

namespace cachalot::torch_adapter {

// Runs `action` and returns what it returns. OutOfMemory becomes c10::OutOfMemoryError (torch.OutOfMemoryError), CudaError
// c10::AcceleratorError (torch.AcceleratorError), InvalidArgument c10::Error (RuntimeError).
template <typename Action>
auto as_torch(Action action) -> decltype(action()) {
  try {
    return action();
  } catch (const OutOfMemory& error) {
    TORCH_CHECK_WITH(OutOfMemoryError, false, error.what());
  } catch (const CudaError& error) {
    throw c10::AcceleratorError({__func__, __FILE__, __LINE__}, error.code(), error.what());
  } catch (const InvalidArgument& error) {
    TORCH_CHECK(false, error.what());
  }
}

}  // namespace cachalot::torch_adapter
