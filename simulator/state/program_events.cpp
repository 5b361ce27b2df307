#include "simulator/state/program_events.h"

#include "device/cuda_codes.h"
#include "simulator/base/thread_state.h"

namespace cachalot::simulator {
namespace {

constexpr std::int64_t kPollNs = 1000;  // a program's turn round a loop that asks and asks again

}  // namespace

EventState& Events::create(unsigned int flags) {
  DeviceState& device = contexts_.current();
  const Event simulated = devices_.on_clock(device).event_create();
  EventState& event = events_.make();
  event.device = device.ordinal;
  event.context = this_thread().context;
  event.simulated = simulated;
  event.flags = flags;
  watch_.made(Owned::event, &event, device.ordinal);
  return event;
}

void Events::destroy(EventState& event) {
  devices_.on_clock(event.device).event_destroy(event.simulated);
  watch_.gone(Owned::event, &event);
  events_.destroy(event);
}

void Events::destroy_all(CUcontext context) {
  const auto is_its = [&](const EventState& event) { return event.context == context; };
  while (EventState* const event = events_.find_if(is_its)) destroy(*event);
}

// The simulated device is about to be reset, and its own events with it.
void Events::destroy_all(const DeviceState& device) {
  events_.destroy_if([&](const EventState& event) { return event.device == device.ordinal; });
}

void Events::record(EventState& event, StreamState& stream) {
  constexpr auto kCall = "cudaEventRecord";
  if (event.device != stream.device || event.context != stream.context)
    fail(kCall, CudaCode::invalid_resource_handle, "event and stream of two contexts");
  order_.join(stream);
  devices_.on_clock(stream.device).event_record(event.simulated, stream.name);
  event.recorded = true;
  event.capture = stream.capture ? stream.capture->id : 0;
  event.frontier = stream.frontier;
  if (launches_.is_kept()) event.before = stream.order.before;
  event.gates.clear();
  if (!stream.gates.empty()) add_closed(event.gates, stream.gates);
}

void Events::wait(StreamState& stream, EventState& event) {
  if (!event.recorded) return;
  order_.join(stream);
  if (event.device != stream.device) {
    wait_on_other_device(stream, event);
  } else {
    devices_.on_clock(stream.device).stream_wait(stream.name, event.simulated);
    if (event.capture != 0) captures_.join(stream, event.capture, event.frontier);
  }
  if (launches_.is_kept() && event.capture == 0) stream.order.before.join(event.before);
  if (!event.gates.empty()) add_closed(stream.gates, event.gates);
}

void Events::wait_on_other_device(StreamState& stream, EventState& event) {
  if (event.capture != 0 || stream.capture)
    fail("cudaStreamWaitEvent", CudaCode::capture_isolation, "a capture on two devices");
  const std::int64_t done_ns = devices_.on_clock(event.device).event_done_ns(event.simulated);
  devices_.on_clock(stream.device).stream_wait_until(stream.name, done_ns);
}

float Events::elapsed_ms(const EventState& start, const EventState& end) {
  const std::int64_t from = devices_.on_clock(start.device).event_done_ns(start.simulated);
  const std::int64_t to = devices_.on_clock(end.device).event_done_ns(end.simulated);
  return static_cast<float>(static_cast<double>(to - from) / 1e6);
}

bool Waits::query(EventState& event) {
  if (event.capture == 0) captures_.require_safe("cudaEventQuery");
  SimulatedDevice& device = devices_.on_clock(event.device);
  if (!device.event_query(event.simulated)) {
    // A loop that polls must come to an end, even where calls take no time.
    if (!config_.latencies) device.advance(kPollNs);
    return false;
  }
  if (!all_open(event.gates)) return false;
  see(event.before);
  return true;
}

bool Waits::query(StreamState& stream) {
  SimulatedDevice& device = devices_.on_clock(stream.device);
  captures_.refuse("cudaStreamQuery", stream);
  captures_.require_safe("cudaStreamQuery");
  order_.join(stream);
  if (!device.stream_query(stream.name)) {
    device.advance(kPollNs);
    return false;
  }
  if (!all_open(stream.gates)) return false;
  see(stream.order.before);
  return true;
}

void Waits::synchronize(EventState& event) {
  if (event.capture == 0) captures_.require_safe("cudaEventSynchronize");
  const int device = event.device;
  const Event simulated_event = event.simulated;
  const Gates gates = event.gates;  // copies: the event may be gone when the wait is over
  const VectorClock before = event.before;
  host_functions_.wait_for(gates);
  devices_.on_clock(device).event_synchronize(simulated_event);
  see(before);
  pools_.trim_all();
}

void Waits::synchronize(StreamState& stream) {
  captures_.refuse("cudaStreamSynchronize", stream);
  captures_.require_safe("cudaStreamSynchronize");
  order_.join(stream);
  const int device = stream.device;
  const Stream name = stream.name;
  const Gates gates = stream.gates;
  const VectorClock before = stream.order.before;
  host_functions_.wait_for(gates);
  devices_.on_clock(device).stream_synchronize(name);
  see(before);
  pools_.trim_all();
}

void Waits::synchronize(DeviceState& device) {
  devices_.on_clock(device).refuse_while_capturing("cudaDeviceSynchronize");
  captures_.require_safe("cudaDeviceSynchronize");
  host_functions_.wait_for_all(device);
  devices_.on_clock(device).synchronize();
  have_waited_for(device);
  pools_.trim_all();
}

void Waits::have_waited_for(const DeviceState& device) {
  if (launches_.is_kept()) launches_.host_saw_device(device.ordinal);
}

}  // namespace cachalot::simulator
