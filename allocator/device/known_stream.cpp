#include "device/known_stream.h"

#include "base/check.h"
#include "cachalot/device.h"
#include "device/cuda_codes.h"

CACHALOT_BEGIN

void wait_for(Device& device, Stream stream) {
  const Event event = device.event_create();
  try {
    device.event_record(event, stream);
    device.event_synchronize(event);
  } catch (...) {
    try {
      device.event_destroy(event);
    } catch (const CudaError&) {  // the first error is the one to tell
    }
    throw;
  }
  device.event_destroy(event);
}

void wait_in_place_of_stream(Device& device, const CudaError& error) {
  if (!tells_of_dead_stream(error)) throw;
  try {
    device.synchronize();
  } catch (const CudaError& of_device) {  // after a reset, drivers from before CUDA 12 give this code to every call
    if (of_device.code() == static_cast<int>(CudaCode::context_is_destroyed)) throw DeviceReset(device.index());
    throw;
  }
}

KnownStream identify(Device& device, Stream handle, bool immortal) {
  if (is_legacy(handle) || (immortal && !is_per_thread(handle))) return immortal_stream(handle);
  std::uint64_t id = 0;
  try {
    id = device.stream_id(handle);
  } catch (const CudaError& error) {
    CACHALOT_REQUIRE(!tells_of_dead_stream(error), "stream {} is not a stream of this process: was it destroyed? ({})",
                     static_cast<const void*>(handle), error.what());
    throw;
  }
  return id == 0 ? immortal_stream(handle) : KnownStream{handle, StreamKey::of_id(id)};
}

namespace {

bool still_has_handle(Device& device, const KnownStream& stream) {
  return stream.key.is_immortal() || device.stream_id(stream.handle) == stream.key.id();
}

}  // namespace

bool still_lives(Device& device, const KnownStream& stream) {
  try {
    return still_has_handle(device, stream);
  } catch (const CudaError& error) {
    if (!tells_of_dead_stream(error)) throw;
    return false;
  }
}

void record_or_wait(Device& device, Event event, const KnownStream& stream) {
  try {
    if (still_has_handle(device, stream)) return device.event_record(event, stream.handle);
  } catch (const CudaError& error) {
    return wait_in_place_of_stream(device, error);
  }
  device.synchronize();
}

void require_stream_of_device(Device& device, Stream stream) {
  CACHALOT_REQUIRE(stream == nullptr || device.has_stream(stream),
                   "stream {} is a stream of another device: work on memory of device {} needs a stream of device {}",
                   static_cast<const void*>(stream), device.index(), device.index());
}

StreamOrder::~StreamOrder() {
  for (const Event event : events_) {
    try {
      device_->event_destroy(event);
    } catch (const CudaError&) {  // at the end of a process the driver may be gone before us
    }
  }
}

bool StreamOrder::captures(const KnownStream& stream) {
  return still_lives(*device_, stream) && device_->capture_status(stream.handle).capturing;
}

// A stream waits for what the event marks now: the event may mark other work as soon as the call returns.
void StreamOrder::put_before(const KnownStream& before, Stream after) {
  const Event event = acquire_event();
  try {
    record_or_wait(*device_, event, before);
    device_->stream_wait(after, event);
  } catch (...) {
    release_event(event);
    throw;
  }
  release_event(event);
}

Event StreamOrder::acquire_event() {
  {
    const Lock lock(mutex_);
    if (!events_.empty()) {
      const Event event = events_.back();
      events_.pop_back();
      return event;
    }
    events_.reserve(++made_);
  }
  try {
    return device_->event_create();
  } catch (...) {
    const Lock lock(mutex_);
    --made_;
    throw;
  }
}

void StreamOrder::release_event(Event event) {
  const Lock lock(mutex_);
  events_.push_back(event);
}

CACHALOT_END
