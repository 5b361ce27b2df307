#include "simulator/contexts.h"

#include "simulator/process.h"

namespace cachalot::simulator {

// No primary context has such an id.
constexpr unsigned long long kFirstId = 1ull << 32;

CUcontext Process::create_context(DeviceState& device) {
  Context& context = contexts.make();
  const CUcontext handle = Contexts::handle(context);
  context.device = device.ordinal;
  context.id = kFirstId + contexts_made_++;
  context.default_stream = &streams_.make();
  prepare_stream(*context.default_stream, device.ordinal, handle, cudaStreamDefault);
  return handle;
}

void Process::destroy_context(const char* call, CUcontext handle) {
  Context& context = contexts.at(call, handle);
  const auto is_its = [&](const auto& object) { return object.context == handle; };
  end_per_thread_streams([&](const PerThreadKey& key) { return key.context == handle; });
  while (StreamState* const stream = streams_.find_if(is_its)) destroy_stream(*stream);
  while (EventState* const event = events_.find_if(is_its)) destroy_event(*event);
  contexts.destroy(context);
}

Context* Process::own_context() {
  const CUcontext handle = this_thread().context;
  if (handle == nullptr) return nullptr;
  if (Context* const context = contexts.find(handle)) return context;
  fail("cuCtxGetCurrent", CudaCode::context_is_destroyed, "the current context was destroyed");
}

StreamState& Process::legacy_stream_of(const StreamState& stream) {
  const Context* const own = contexts.find(stream.context);
  return own ? *own->default_stream : devices_[static_cast<std::size_t>(stream.device)]->legacy_stream;
}

VectorClock& Process::before_destroyed_of(const StreamState& stream) {
  Context* const own = contexts.find(stream.context);
  return own ? own->before_destroyed : devices_[static_cast<std::size_t>(stream.device)]->before_destroyed;
}

}  // namespace cachalot::simulator
