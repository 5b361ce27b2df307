// Contexts that a program makes beside its devices' primary ones, whose handles are their devices' state.
#pragma once

#include "simulator/abi.h"
#include "simulator/registry.h"
#include "simulator/streams.h"

namespace cachalot::simulator {

struct Context {
  int device = 0;
  unsigned long long id = 0;
  StreamState* default_stream = nullptr;
};

using Contexts = Registry<Context, CUcontext>;

}  // namespace cachalot::simulator
