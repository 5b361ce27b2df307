#include "streams/stream_order.h"

#include "cachalot/errors.h"

CACHALOT_BEGIN

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
