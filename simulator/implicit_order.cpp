#include "simulator/implicit_order.h"

#include "device/cuda_codes.h"

namespace cachalot::simulator {

void ImplicitOrder::join(StreamState& stream) {
  if (!config_.legacy_stream_waits || !stream.is_blocking() || stream.capture) return;
  if (stream.context) [[unlikely]]
    join_time(stream);
  if (devices_.at(stream.device).host_functions > 0) join_gates(stream);
  if (watch_.is_on()) join_order(stream);
}

void ImplicitOrder::join_gates(StreamState& stream) {
  StreamState& legacy = contexts_.legacy_stream_of(stream);
  if (&stream != &legacy) return add_closed(stream.gates, legacy.gates);
  streams_.for_each_blocking(legacy, [&](StreamState& other) { add_closed(stream.gates, other.gates); });
}

void ImplicitOrder::join_order(StreamState& stream) {
  StreamState& legacy = contexts_.legacy_stream_of(stream);
  if (&stream != &legacy) return stream.order.before.join(legacy.order.before);
  stream.order.before.join(contexts_.before_destroyed_of(stream));
  streams_.for_each_blocking(legacy, [&](StreamState& other) { stream.order.before.join(other.order.before); });
}

// For streams of a context beside the primary one.
void ImplicitOrder::join_time(StreamState& stream) {
  SimulatedDevice& device = devices_.on_clock(stream.device);
  StreamState& legacy = contexts_.legacy_stream_of(stream);
  const auto wait_until = [&](std::int64_t ns) { device.stream_wait_until(stream.name, ns); };
  if (&stream != &legacy) return wait_until(device.stream_ready_ns(legacy.name));
  refuse_capture("a call on the legacy stream", legacy, true);
  wait_until(contexts_.find(stream.context)->destroyed_ready_ns);
  streams_.for_each_blocking(legacy, [&](StreamState& other) { wait_until(device.stream_ready_ns(other.name)); });
}

void ImplicitOrder::refuse_capture(const char* call, const StreamState& legacy, bool spoils) {
  bool captures = false;
  streams_.for_each_blocking(legacy, [&](StreamState& other) CACHALOT_LOCKED {
    if (!other.capture) return;
    captures = true;
    if (spoils) devices_.on_clock(other.device).spoil_capture(other.name);
  });
  if (captures) fail(call, CudaCode::capture_implicit, "the legacy stream waits for a blocking stream that captures");
}

void ImplicitOrder::refuse_question(const char* call, const StreamState& stream) {
  if (stream.context && config_.legacy_stream_waits && &stream == &contexts_.legacy_stream_of(stream))
    refuse_capture(call, stream, false);
}

}  // namespace cachalot::simulator
