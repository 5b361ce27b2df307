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
  context.default_stream = &make_stream(device.ordinal, handle);
  return handle;
}

void Process::destroy_context(CUcontext handle) {
  const auto is_its = [&](const auto& object) { return object.context == handle; };
  while (StreamState* const stream = streams_.find_if(is_its)) destroy_stream(*stream);
  while (EventState* const event = events_.find_if(is_its)) destroy_event(*event);
  contexts.destroy(contexts.at("cuCtxDestroy", handle));
}

Context* Process::own_context() {
  const CUcontext handle = this_thread().context;
  if (handle == nullptr) return nullptr;
  if (Context* const context = contexts.find(handle)) return context;
  fail("cuCtxGetCurrent", CudaCode::context_is_destroyed, "the current context was destroyed");
}

}  // namespace cachalot::simulator
