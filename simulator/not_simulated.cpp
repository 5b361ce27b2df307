// The functions that are not simulated: each says so, once and by name, and fails with "operation not supported".
#include "simulator/notes.h"
#include "simulator/thread_state.h"

namespace {

constexpr int kNotSupported = 801;  // cudaErrorNotSupported and CUDA_ERROR_NOT_SUPPORTED

int refuse_runtime(const char* name) {
  cachalot::simulator::note_not_simulated(name);
  cachalot::simulator::this_thread().last_error = cudaErrorNotSupported;
  return kNotSupported;
}

int refuse_driver(const char* name) {
  cachalot::simulator::note_not_simulated(name);
  return kNotSupported;
}

}  // namespace

// CUDA's headers declare the names with arguments, which nobody reads, and make macros of some: another name in C++, the same
// symbol, and no macro between the list and # or ##.
#define RUNTIME_FUNCTION(name)                                                                 \
  extern "C" __attribute__((visibility("default"))) int not_simulated_##name() __asm__(#name); \
  int not_simulated_##name() { return refuse_runtime(#name); }
#define DRIVER_FUNCTION(name)                                                                  \
  extern "C" __attribute__((visibility("default"))) int not_simulated_##name() __asm__(#name); \
  int not_simulated_##name() { return refuse_driver(#name); }
#include "simulator/not_simulated.inc"
