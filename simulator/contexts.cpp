#include "simulator/contexts.h"

#include "simulator/thread_state.h"

namespace cachalot::simulator {

// No primary context has such an id.
constexpr unsigned long long kFirstId = 1ull << 32;

DeviceState& Contexts::current() {
  ThreadState& thread = this_thread();
  thread.has_context = true;
  DeviceState& device = devices_.at(thread.device);
  if (own() == nullptr) device.make_context();
  return device;
}

Context* Contexts::own() {
  const CUcontext handle = this_thread().context;
  if (handle == nullptr) return nullptr;
  if (Context* const context = contexts_.find(handle)) return context;
  fail("cuCtxGetCurrent", CudaCode::context_is_destroyed, "the current context was destroyed");
}

void Contexts::require(const char* call, ContextRule rule) const {
  if (!this_thread().has_context && config_.contexts >= rule) [[unlikely]]
    fail(call, CudaCode::device_uninitialized, "the thread has no current context");
}

Context& Contexts::make(const DeviceState& device) {
  Context& context = contexts_.make();
  context.device = device.ordinal;
  context.id = kFirstId + made_++;
  return context;
}

void Contexts::destroy_all(const DeviceState& device) {
  contexts_.destroy_if([&](const Context& context) { return context.device == device.ordinal; });
}

StreamState& Contexts::legacy_stream_of(const StreamState& stream) {
  const Context* const own = contexts_.find(stream.context);
  return own ? *own->default_stream : devices_.at(stream.device).legacy_stream;
}

VectorClock& Contexts::before_destroyed_of(const StreamState& stream) {
  Context* const own = contexts_.find(stream.context);
  return own ? own->before_destroyed : devices_.at(stream.device).before_destroyed;
}

}  // namespace cachalot::simulator
