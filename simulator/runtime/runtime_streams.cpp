// The runtime's functions about streams and events.
#include <cstring>
#include <memory>

#include "simulator/state/calls.h"

using namespace cachalot::simulator;

namespace {

cudaStream_t handle_of(const StreamState& stream) { return Registry<StreamState, cudaStream_t>::handle(stream); }
cudaEvent_t handle_of(const EventState& event) { return Registry<EventState, cudaEvent_t>::handle(event); }

constexpr char kEventTicket[16] = "cachalot event";

}  // namespace

extern "C" {

cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned int flags, int priority) {
  return runtime_call([&](Process& process) { *stream = handle_of(process.streams().create(flags, priority)); });
}
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned int flags) {
  return cudaStreamCreateWithPriority(stream, flags, 0);
}
cudaError_t cudaStreamCreate(cudaStream_t* stream) { return cudaStreamCreateWithPriority(stream, 0, 0); }

cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  return runtime_call([&](Process& process) {
    if (!stream || stream == cudaStreamLegacy || stream == cudaStreamPerThread) return cudaErrorInvalidResourceHandle;
    process.streams().destroy(process.streams().at("cudaStreamDestroy", stream));
    return cudaSuccess;
  });
}

cudaError_t cudaStreamQuery(cudaStream_t stream) {
  return runtime_call([&](Process& process) {
    return process.waits().query(process.streams().at("cudaStreamQuery", stream)) ? cudaSuccess : cudaErrorNotReady;
  });
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  return runtime_call(
      [&](Process& process) { process.waits().synchronize(process.streams().at("cudaStreamSynchronize", stream)); });
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned int) {
  return runtime_call([&](Process& process) {
    process.events().wait(process.streams().at("cudaStreamWaitEvent", stream),
                          process.events().at("cudaStreamWaitEvent", event));
  });
}

cudaError_t cudaStreamGetPriority(cudaStream_t stream, int* priority) {
  return runtime_call(
      [&](Process& process) { *priority = process.streams().at("cudaStreamGetPriority", stream).priority; });
}

cudaError_t cudaStreamGetFlags(cudaStream_t stream, unsigned int* flags) {
  return runtime_call([&](Process& process) { *flags = process.streams().at("cudaStreamGetFlags", stream).flags; });
}

// An allocator asks in each allocation which stream has the handle: the thread remembers the answer, and so takes no lock.
cudaError_t cudaStreamGetId(cudaStream_t stream, unsigned long long* id) {
  AskedStream& asked = this_thread().asked;
  if (asked.handle == stream && asked.destroyed == Streams::destroyed()) [[likely]]
    return unlocked_runtime_call([&] { *id = asked.id; });
  return runtime_call([&](Process& process) {
    *id = process.streams().at("cudaStreamGetId", stream).id;
    if (Streams::is_own_name(stream)) asked = {stream, *id, Streams::destroyed()};
  });
}

cudaError_t cudaStreamGetDevice(cudaStream_t stream, int* device) {
  return runtime_call([&](Process& process) { *device = process.streams().at("cudaStreamGetDevice", stream).device; });
}

// Attributes are hints to the hardware: taken, and told back as if never set.
cudaError_t cudaStreamSetAttribute(cudaStream_t stream, cudaStreamAttrID, const cudaStreamAttrValue*) {
  return runtime_call([&](Process& process) { process.streams().at("cudaStreamSetAttribute", stream); });
}

cudaError_t cudaStreamGetAttribute(cudaStream_t stream, cudaStreamAttrID, cudaStreamAttrValue* value) {
  return runtime_call([&](Process& process) {
    process.streams().at("cudaStreamGetAttribute", stream);
    *value = {};
  });
}

cudaError_t cudaStreamCopyAttributes(cudaStream_t to, cudaStream_t from) {
  return runtime_call([&](Process& process) {
    process.streams().at("cudaStreamCopyAttributes", to);
    process.streams().at("cudaStreamCopyAttributes", from);
  });
}

cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void* data) {
  return runtime_call([&](Process& process) {
    process.host_functions().launch(process.streams().at("cudaLaunchHostFunc", stream), function, data);
  });
}

cudaError_t cudaStreamAddCallback(cudaStream_t stream, cudaStreamCallback_t callback, void* data, unsigned int) {
  struct Callback {
    cudaStream_t stream;
    cudaStreamCallback_t function;
    void* data;
  };
  const auto run = [](void* state) {
    const std::unique_ptr<Callback> queued(static_cast<Callback*>(state));
    queued->function(queued->stream, cudaSuccess, queued->data);
  };
  return runtime_call([&](Process& process) {
    StreamState& on = process.streams().at("cudaStreamAddCallback", stream);
    process.captures().refuse("cudaStreamAddCallback", on);
    process.host_functions().launch(on, run, new Callback{stream, callback, data});
  });
}

// ---- Events ---------------------------------------------------------------------------------------------------------

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned int flags) {
  return runtime_call([&](Process& process) { *event = handle_of(process.events().create(flags)); });
}
cudaError_t cudaEventCreate(cudaEvent_t* event) { return cudaEventCreateWithFlags(event, cudaEventDefault); }

cudaError_t cudaEventDestroy(cudaEvent_t event) {
  return runtime_call(
      [&](Process& process) { process.events().destroy(process.events().at("cudaEventDestroy", event)); });
}

cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream, unsigned int flags) {
  return runtime_call([&](Process& process) {
    EventState& recorded = process.events().at("cudaEventRecord", event);
    StreamState& on = process.streams().at("cudaEventRecord", stream);
    if (on.capture && flags == cudaEventRecordExternal) {
      process.captures().add_node(on, cudaGraphNodeTypeEventRecord).event = event;
    } else {
      process.events().record(recorded, on);
    }
  });
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  return cudaEventRecordWithFlags(event, stream, cudaEventRecordDefault);
}

cudaError_t cudaEventQuery(cudaEvent_t event) {
  return runtime_call([&](Process& process) {
    return process.waits().query(process.events().at("cudaEventQuery", event)) ? cudaSuccess : cudaErrorNotReady;
  });
}

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  return runtime_call(
      [&](Process& process) { process.waits().synchronize(process.events().at("cudaEventSynchronize", event)); });
}

// Another process's clock is not ours: an event opened here is done, and recording it marks our own work alone.
cudaError_t cudaIpcGetEventHandle(cudaIpcEventHandle_t* handle, cudaEvent_t event) {
  return runtime_call([&](Process& process) {
    const unsigned int flags = process.events().at("cudaIpcGetEventHandle", event).flags;
    constexpr unsigned int kNeeded = cudaEventInterprocess | cudaEventDisableTiming;
    if ((flags & kNeeded) != kNeeded) return cudaErrorInvalidResourceHandle;
    *handle = {};
    std::memcpy(handle->reserved, kEventTicket, sizeof(kEventTicket));
    return cudaSuccess;
  });
}

cudaError_t cudaIpcOpenEventHandle(cudaEvent_t* event, cudaIpcEventHandle_t handle) {
  return runtime_call([&](Process& process) {
    if (std::memcmp(handle.reserved, kEventTicket, sizeof(kEventTicket)) != 0) return cudaErrorInvalidValue;
    *event = handle_of(process.events().create(cudaEventInterprocess | cudaEventDisableTiming));
    return cudaSuccess;
  });
}

cudaError_t cudaEventElapsedTime(float* ms, cudaEvent_t start, cudaEvent_t end) {
  return runtime_call([&](Process& process) {
    EventState& from = process.events().at("cudaEventElapsedTime", start);
    EventState& to = process.events().at("cudaEventElapsedTime", end);
    if (from.device != to.device) return cudaErrorInvalidResourceHandle;
    const bool timed = ((from.flags | to.flags) & cudaEventDisableTiming) == 0;
    if (!timed || !from.recorded || !to.recorded) return cudaErrorInvalidResourceHandle;
    if (!process.waits().query(from) || !process.waits().query(to)) return cudaErrorNotReady;
    *ms = process.events().elapsed_ms(from, to);
    return cudaSuccess;
  });
}

}  // extern "C"

CACHALOT_SIMULATOR_PER_THREAD(cudaEventRecord, ptsz)
CACHALOT_SIMULATOR_PER_THREAD(cudaEventRecordWithFlags, ptsz)
CACHALOT_SIMULATOR_PER_THREAD(cudaLaunchHostFunc, ptsz)
CACHALOT_SIMULATOR_PER_THREAD(cudaStreamAddCallback, ptsz)
CACHALOT_SIMULATOR_PER_THREAD(cudaStreamCopyAttributes, ptsz)
CACHALOT_SIMULATOR_PER_THREAD(cudaStreamGetAttribute, ptsz)
CACHALOT_SIMULATOR_PER_THREAD(cudaStreamGetDevice, ptsz)
CACHALOT_SIMULATOR_PER_THREAD(cudaStreamGetFlags, ptsz)
CACHALOT_SIMULATOR_PER_THREAD(cudaStreamGetId, ptsz)
CACHALOT_SIMULATOR_PER_THREAD(cudaStreamGetPriority, ptsz)
CACHALOT_SIMULATOR_PER_THREAD(cudaStreamQuery, ptsz)
CACHALOT_SIMULATOR_PER_THREAD(cudaStreamSetAttribute, ptsz)
CACHALOT_SIMULATOR_PER_THREAD(cudaStreamSynchronize, ptsz)
CACHALOT_SIMULATOR_PER_THREAD(cudaStreamWaitEvent, ptsz)
