// The functions that are not simulated: each says so, once and by name, and fails with "operation not supported".
#include "simulator/base/report.h"
#include "simulator/base/thread_state.h"

namespace {

int refuse_runtime(const char* name) {
  cachalot::simulator::note_not_simulated(name);
  cachalot::simulator::this_thread().last_error = cudaErrorNotSupported;
  return cudaErrorNotSupported;
}

int refuse_driver(const char* name) {
  cachalot::simulator::note_not_simulated(name);
  return CUDA_ERROR_NOT_SUPPORTED;
}

}  // namespace

// CUDA's headers declare the names with arguments, which are not read, and make macros of some: another name in C++, the same
// symbol, and no macro between the list and # or ##.
#define NOT_SIMULATED(name, symbol, refuse)                                                     \
  extern "C" __attribute__((visibility("default"))) int not_simulated_##name() __asm__(symbol); \
  int not_simulated_##name() { return refuse(symbol); }
#define RUNTIME_FUNCTION(name) NOT_SIMULATED(runtime_##name, #name, refuse_runtime)
#define DRIVER_FUNCTION(name) NOT_SIMULATED(driver_##name, #name, refuse_driver)
#define TWIN_FUNCTIONS(name)                                  \
  NOT_SIMULATED(runtime_##name, "cuda" #name, refuse_runtime) \
  NOT_SIMULATED(driver_##name, "cu" #name, refuse_driver)
#include "simulator/driver/not_simulated.inc"
