// Work of one stream before work of another, without the host: events that are used again.
// Thread safety: any thread; no lock is held across a call of the device.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "base/locks.h"
#include "cachalot/device.h"
#include "device/known_stream.h"

CACHALOT_BEGIN

class StreamOrder {
 public:
  explicit StreamOrder(std::shared_ptr<Device> device) : device_(std::move(device)) {}
  ~StreamOrder();
  StreamOrder(const StreamOrder&) = delete;
  StreamOrder& operator=(const StreamOrder&) = delete;

  // A stream that is no more does not.
  bool captures(const KnownStream& stream);
  // What is queued on `after` from now on waits for what is queued on `before` by now. Neither captures. Where `before` is no
  // more, or another thread's default stream, waits for all work on the device instead.
  void put_before(const KnownStream& before, Stream after);

 private:
  Event acquire_event();
  void release_event(Event event);

  const std::shared_ptr<Device> device_;
  SpinMutex mutex_;
  std::vector<Event> events_ CACHALOT_GUARDED_BY(mutex_);  // that nobody uses, with room for all
  std::size_t made_ CACHALOT_GUARDED_BY(mutex_) = 0;
};

CACHALOT_END
