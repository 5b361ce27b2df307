// What CUDA keeps for each thread.
#pragma once

#include <vector>

#include "simulator/abi.h"

namespace cachalot::simulator {

// The <<<grid, block, shared, stream>>> of a launch, between __cudaPushCallConfiguration and __cudaPopCallConfiguration.
struct LaunchShape {
  dim3 grid;
  dim3 block;
  std::size_t shared_bytes = 0;
  void* stream = nullptr;
};

struct ThreadState {
  int device = 0;
  bool has_context = false;  // a device was made current, by the program or by a call that needs one
  cudaError_t last_error = cudaSuccess;
  cudaStreamCaptureMode capture_mode = cudaStreamCaptureModeGlobal;
  std::vector<CUcontext> contexts;  // pushed, below the current one
  std::vector<LaunchShape> launches;
};

inline ThreadState& this_thread() {
  thread_local ThreadState state;
  return state;
}

}  // namespace cachalot::simulator
