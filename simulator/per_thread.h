// The functions of the runtime under their names for programs that are compiled with a default stream for each thread.
#pragma once

#include "simulator/thread_state.h"

namespace cachalot::simulator {

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

}  // namespace cachalot::simulator

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
