// Contexts: the current one of each thread, and those that a program makes beside its devices' primary ones. The
// handle of a primary one is its device's state.
#pragma once

#include <cstdint>

#include "device/vector_clock.h"
#include "simulator/abi.h"
#include "simulator/config.h"
#include "simulator/devices.h"
#include "simulator/lock.h"
#include "simulator/registry.h"
#include "simulator/stream_state.h"

namespace cachalot::simulator {

struct Context {
  int device = 0;
  unsigned long long id = 0;
  StreamState* default_stream = nullptr;
  VectorClock before_destroyed;         // what comes before the end of blocking streams that were destroyed
  std::int64_t destroyed_ready_ns = 0;  // the end of their work
};

class Contexts {
 public:
  Contexts(const Config& config, Devices& devices) : config_(config), devices_(devices) {}

  // Returns the thread's device, and makes its primary context, as every call does that needs a device.
  DeviceState& current() CACHALOT_LOCKED;
  // Returns the thread's current context. Null: it is a primary one, or there is none. Throws 709 if it was destroyed.
  Context* own() CACHALOT_LOCKED;
  // Throws cudaErrorDeviceUninitialized (the driver's CUDA_ERROR_INVALID_CONTEXT) if the thread has no current
  // context and the user's choice is this rule, or a stricter one.
  void require(const char* call, ContextRule rule) const;

  // Both find no primary context. `find` returns null then, and `at` throws cudaErrorInvalidResourceHandle.
  Context* find(CUcontext handle) CACHALOT_LOCKED { return contexts_.find(handle); }
  Context& at(const char* call, CUcontext handle) CACHALOT_LOCKED { return contexts_.at(call, handle); }
  static CUcontext handle(const Context& context) { return Registry<Context, CUcontext>::handle(context); }

  // Makes a context that has no default stream yet.
  Context& make(const DeviceState& device) CACHALOT_LOCKED;
  void destroy(Context& context) CACHALOT_LOCKED { contexts_.destroy(context); }
  void destroy_all(const DeviceState& device) CACHALOT_LOCKED;

  // Both return what belongs to the stream's context.
  StreamState& legacy_stream_of(const StreamState& stream) CACHALOT_LOCKED;
  VectorClock& before_destroyed_of(const StreamState& stream) CACHALOT_LOCKED;

 private:
  const Config& config_;
  Devices& devices_;
  Registry<Context, CUcontext> contexts_ CACHALOT_UNDER_LOCK;
  unsigned long long made_ CACHALOT_UNDER_LOCK = 0;
};

}  // namespace cachalot::simulator
