// The simulated device's work: calls of streams, events and captures.
#include "base/check.h"
#include "base/format.h"
#include "cachalot/simulated_device.h"
#include "device/addresses.h"
#include "device/cuda_codes.h"
#include "device/simulated_device_state.h"

CACHALOT_BEGIN

// Events.

Event SimulatedDevice::event_create() {
  const Lock lock(impl_->mutex);
  impl_->book.begin(DeviceCall::event_create);
  const Event event = impl_->streams.create_event();
  impl_->book.succeeded(reinterpret_cast<std::uintptr_t>(event));
  return event;
}

void SimulatedDevice::event_destroy(Event event) {
  const Lock lock(impl_->mutex);
  impl_->book.begin(DeviceCall::event_destroy, reinterpret_cast<std::uintptr_t>(event));
  impl_->streams.destroy_event(event);
  impl_->book.succeeded();
}

void SimulatedDevice::event_record(Event event, Stream stream) {
  const Lock lock(impl_->mutex);
  impl_->book.begin(DeviceCall::event_record, reinterpret_cast<std::uintptr_t>(event));
  SimulatedEvent& recorded = impl_->streams.event("cuEventRecord", event);
  SimulatedStream& on = impl_->stream_in_order("cuEventRecord", stream);
  const bool ordinary = impl_->streams.record(recorded, on, impl_->book.clock_ns());
  if (ordinary && impl_->checker) impl_->checker->recorded(stream, recorded.after);
  impl_->book.succeeded();
}

bool SimulatedDevice::event_query(Event event) {
  constexpr auto kCall = "cuEventQuery";
  const Lock lock(impl_->mutex);
  impl_->book.begin(DeviceCall::event_query, reinterpret_cast<std::uintptr_t>(event));
  const SimulatedEvent& asked = impl_->streams.event(kCall, event);
  impl_->streams.refuse_captured(kCall, asked);
  const bool done = impl_->book.clock_ns() >= asked.done_ns;
  if (done) impl_->saw(asked);
  impl_->book.succeeded();
  return done;
}

void SimulatedDevice::event_synchronize(Event event) {
  constexpr auto kCall = "cuEventSynchronize";
  const Lock lock(impl_->mutex);
  impl_->book.begin(DeviceCall::event_synchronize, reinterpret_cast<std::uintptr_t>(event));
  const SimulatedEvent& awaited = impl_->streams.event(kCall, event);
  impl_->streams.refuse_captured(kCall, awaited);
  impl_->streams.refuse_while_capturing(kCall);
  impl_->book.wait_until(awaited.done_ns);
  impl_->saw(awaited);
  impl_->book.succeeded();
}

// Streams.

std::uint64_t SimulatedDevice::stream_id(Stream stream) {
  const Lock lock(impl_->mutex);
  return impl_->streams.stream(stream).id();
}

std::optional<std::uint64_t> SimulatedDevice::completion_hint(Stream stream) {
  if (!impl_->config.completion_hints) return std::nullopt;
  const Lock lock(impl_->mutex);
  return impl_->streams.even_dead(stream).completed_events(impl_->book.clock_ns());
}

void SimulatedDevice::stream_wait(Stream stream, Event event) {
  const Lock lock(impl_->mutex);
  impl_->book.begin(DeviceCall::stream_wait, reinterpret_cast<std::uintptr_t>(event));
  const SimulatedEvent& awaited = impl_->streams.event("cuStreamWaitEvent", event);
  const bool ordinary = impl_->streams.wait(impl_->stream_in_order("cuStreamWaitEvent", stream), awaited);
  if (ordinary && impl_->checker) impl_->checker->waited(stream, awaited.after);
  impl_->book.succeeded();
}

void SimulatedDevice::synchronize() {
  const Lock lock(impl_->mutex);
  impl_->book.begin(DeviceCall::synchronize);
  impl_->streams.refuse_while_capturing("cuCtxSynchronize");
  impl_->wait_for_all_work();
  impl_->book.succeeded();
}

Stream SimulatedDevice::stream() {
  const Lock lock(impl_->mutex);
  return impl_->streams.create_stream();
}

void SimulatedDevice::stream_create(Stream name) {
  const Lock lock(impl_->mutex);
  impl_->streams.create_stream(name);
}

std::int64_t SimulatedDevice::launch(Stream stream, std::int64_t duration_ns, const std::vector<AddressRange>& ranges) {
  CACHALOT_REQUIRE(duration_ns >= 0, "work of {} ns: a duration is not negative", duration_ns);
  const Lock lock(impl_->mutex);
  impl_->require_accessible(ranges);
  SimulatedStream& on = impl_->stream_in_order("cuLaunchKernel", stream);
  const bool queued = impl_->streams.launch(on, impl_->book.clock_ns(), duration_ns);
  if (queued && impl_->checker) impl_->note_uses(stream, ranges);
  return on.ready_ns();
}

std::int64_t SimulatedDevice::launch_copy(Stream stream, const HostCopy& copy,
                                          const std::vector<AddressRange>& ranges) {
  const Lock lock(impl_->mutex);
  impl_->require_accessible(ranges);
  return impl_->queue_copy(impl_->stream_in_order("cuMemcpyAsync", stream), copy, ranges);
}

// Copies within the device take the stream no time, as fills do.
void SimulatedDevice::copy(CopyKind kind, Address to, Address from, std::size_t bytes, Stream stream) {
  constexpr auto kCall = "cuMemcpyAsync";
  const bool to_host = kind == CopyKind::to_host;
  const Address here = to_host ? from : to;
  const Lock lock(impl_->mutex);
  impl_->book.begin(DeviceCall::copy, here, bytes);
  std::vector<AddressRange> ranges = {{here, bytes}};
  if (kind == CopyKind::within_device) ranges.push_back({from, bytes});
  for (const AddressRange& range : ranges) {
    if (bytes != 0 && !impl_->locate(range.address, bytes).empty()) continue;
    fail(kCall, CudaCode::invalid_value, formatted("[{:#x}, +{}) is not accessible memory", range.address, bytes));
  }
  SimulatedStream& on = impl_->stream_in_order(kCall, stream);
  const bool captures = on.capture() != 0;
  if (kind == CopyKind::within_device) {
    const bool queued = impl_->streams.launch(on, impl_->book.clock_ns(), 0);
    if (queued && impl_->checker) impl_->note_uses(stream, ranges);
  } else {
    const auto* const host = as_pointer(to_host ? to : from);
    const auto direction = to_host ? CopyDirection::to_host : CopyDirection::to_device;
    impl_->queue_copy(on, {direction, bytes, impl_->host_memory.holds(host)}, ranges);
  }
  if (!captures) impl_->move_content(kind, to, from, bytes);
  impl_->book.succeeded();
}

bool SimulatedDevice::has_stream(Stream stream) {
  const Lock lock(impl_->mutex);
  return impl_->streams.has(stream);
}

void SimulatedDevice::set_blocking(Stream stream) {
  const Lock lock(impl_->mutex);
  impl_->streams.set_blocking(stream);
}

void SimulatedDevice::stream_destroy(Stream stream) {
  const Lock lock(impl_->mutex);
  const bool was_blocking = impl_->streams.stream(stream).is_blocking();
  impl_->streams.destroy_stream(stream);
  if (impl_->checker) impl_->checker->destroyed(stream, was_blocking);
}

void SimulatedDevice::stream_synchronize(Stream stream) {
  const Lock lock(impl_->mutex);
  impl_->streams.refuse_while_capturing("cuStreamSynchronize");
  impl_->wait_for_stream(impl_->stream_in_order("cuStreamSynchronize", stream));
}

bool SimulatedDevice::stream_query(Stream stream) {
  const Lock lock(impl_->mutex);
  impl_->streams.refuse_while_capturing("cuStreamQuery");
  const bool done = impl_->book.clock_ns() >= impl_->stream_in_order("cuStreamQuery", stream).ready_ns();
  if (done && impl_->checker) impl_->checker->host_saw_stream(stream);
  return done;
}

std::int64_t SimulatedDevice::stream_ready_ns(Stream stream) {
  const Lock lock(impl_->mutex);
  return impl_->streams.stream(stream).ready_ns();
}

std::int64_t SimulatedDevice::event_done_ns(Event event) {
  const Lock lock(impl_->mutex);
  return impl_->streams.event("cuEventElapsedTime", event).done_ns;
}

void SimulatedDevice::stream_wait_until(Stream stream, std::int64_t ns) {
  const Lock lock(impl_->mutex);
  impl_->streams.wait_until(impl_->stream_in_order("cuStreamWaitEvent", stream), ns);
}

// Captures.

CaptureStatus SimulatedDevice::capture_status(Stream stream) {
  const Lock lock(impl_->mutex);
  impl_->book.begin(DeviceCall::capture_status, reinterpret_cast<std::uintptr_t>(stream));
  const SimulatedStream& asked = impl_->streams.stream(stream);
  impl_->streams.refuse_implicit_capture("cuStreamGetCaptureInfo", asked, false);
  const std::uint64_t id = asked.capture();
  impl_->book.succeeded();
  return {.capturing = id != 0, .id = id};
}

std::uint64_t SimulatedDevice::begin_capture(Stream stream) {
  const Lock lock(impl_->mutex);
  return impl_->streams.begin_capture(impl_->streams.stream(stream));
}

void SimulatedDevice::end_capture(Stream stream) {
  const Lock lock(impl_->mutex);
  impl_->streams.end_capture(impl_->streams.stream(stream));
}

void SimulatedDevice::refuse_while_capturing(const char* call) {
  const Lock lock(impl_->mutex);
  impl_->streams.refuse_in_any_mode(call);
}

void SimulatedDevice::spoil_capture(Stream stream) {
  const Lock lock(impl_->mutex);
  impl_->streams.spoil_capture_of(impl_->streams.stream(stream));
}

bool SimulatedDevice::is_capture_spoilt(Stream stream) const {
  const Lock lock(impl_->mutex);
  return impl_->streams.is_spoilt(impl_->streams.stream(stream));
}

CACHALOT_END
