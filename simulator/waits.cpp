#include "simulator/waits.h"

namespace cachalot::simulator {
namespace {

constexpr std::int64_t kPollNs = 1000;  // a program's turn round a loop that asks and asks again

}  // namespace

bool Waits::query(EventState& event) {
  if (event.capture == 0) captures_.require_safe("cudaEventQuery");
  SimulatedDevice& device = devices_.on_clock(event.device);
  if (!device.event_query(event.simulated)) {
    // A loop that polls must come to an end, even where calls take no time.
    if (!config_.latencies) device.advance(kPollNs);
    return false;
  }
  return all_open(event.gates);
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
  return all_open(stream.gates);
}

void Waits::synchronize(EventState& event) {
  if (event.capture == 0) captures_.require_safe("cudaEventSynchronize");
  const int device = event.device;
  const Event simulated_event = event.simulated;
  const Gates gates = event.gates;  // a copy: the event may be gone when the wait is over
  host_functions_.wait_for(gates);
  devices_.on_clock(device).event_synchronize(simulated_event);
  pools_.trim_all();
}

void Waits::synchronize(StreamState& stream) {
  captures_.refuse("cudaStreamSynchronize", stream);
  captures_.require_safe("cudaStreamSynchronize");
  order_.join(stream);
  const int device = stream.device;
  const Stream name = stream.name;
  const Gates gates = stream.gates;
  host_functions_.wait_for(gates);
  devices_.on_clock(device).stream_synchronize(name);
  pools_.trim_all();
}

void Waits::synchronize(DeviceState& device) {
  devices_.on_clock(device).refuse_while_capturing("cudaDeviceSynchronize");
  captures_.require_safe("cudaDeviceSynchronize");
  host_functions_.wait_for_all(device);
  devices_.on_clock(device).synchronize();
  pools_.trim_all();
}

}  // namespace cachalot::simulator
