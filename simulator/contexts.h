// Contexts that a program makes beside its devices' primary ones, whose handles are their devices' state.
#pragma once

#include <cstdint>

#include "device/vector_clock.h"
#include "simulator/abi.h"
#include "simulator/registry.h"
#include "simulator/streams.h"

namespace cachalot::simulator {

struct Context {
  int device = 0;
  unsigned long long id = 0;
  StreamState* default_stream = nullptr;
  VectorClock before_destroyed;         // what comes before the end of blocking streams that were destroyed
  std::int64_t destroyed_ready_ns = 0;  // the end of their work
};

using Contexts = Registry<Context, CUcontext>;

}  // namespace cachalot::simulator
