// StreamClocks know how far each stream has come: which memory of one stream others may use, and what to wait for.
//
// Clocks come and go only while the growth mutex is held, so that a Growing may walk over them across points where it lets
// the device's mutex go.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <unordered_map>
#include <vector>

#include "heap/heap_state.h"
#include "pages/stream_clock.h"

namespace cachalot {

class StreamClocks {
 public:
  explicit StreamClocks(HeapState& state) : state_(state) {}
  // Destroys the events.
  ~StreamClocks();
  StreamClocks(const StreamClocks&) = delete;
  StreamClocks& operator=(const StreamClocks&) = delete;

  // The clock of a stream, made if there was none.
  StreamClock& of(const KnownStream& stream, Growing& growing) CACHALOT_GROWING;
  StreamClock* find(StreamKey stream, const Held& held) CACHALOT_HELD;
  std::size_t count(const Held& held) const CACHALOT_HELD;

  // Asks how far streams have come, and leaves an event for the next time.
  // `page_bytes`: from which size on free blocks of other streams are of use.
  void refresh(Request request, std::size_t page_bytes, Growing& growing) CACHALOT_GROWING;
  // Only asks.
  void ask_all(Growing& growing) CACHALOT_GROWING;
  // Waits for the device: after that, what is free belongs to nobody and may be unmapped. What is freed meanwhile is of later
  // epochs. Throws CudaError.
  void finish_all_work(Growing& growing) CACHALOT_GROWING;
  // From here on the stream may use what became free on another up to an epoch, which an event covers.
  void wait(StreamClock& waiter, const StreamClock& other, std::uint32_t epoch, Growing& growing) CACHALOT_GROWING;

  // Which free blocks of an arena may serve a stream: in private pools, and with cross_stream:off, its own alone.
  Reach reach_into(const Arena& arena, const KnownStream& stream, Ordering ordering,
                   const Held& held) const CACHALOT_HELD;
  bool may_take(const Block& block, const KnownStream& stream, Ordering ordering, const Held& held) const CACHALOT_HELD;

  bool captures(Stream stream, Held& held) CACHALOT_HELD;
  // Records an event after the stream's last work, and ends its clock; nothing where it has ended before. Throws CudaError,
  // and then has not ended it.
  bool record_end(const KnownStream& stream, Growing& growing) CACHALOT_GROWING;
  // Those clocks that something beside blocks refers to must stay: whoever has such things says which.
  void set_referred(std::function<std::set<const StreamClock*>(const Held&)> referred);
  // Forgets the clocks of mortal streams, but these.
  void forget_but(const std::set<StreamKey>& kept, Growing& growing) CACHALOT_GROWING;

 private:
  void end_epoch(StreamClock& clock, const Held& held) CACHALOT_HELD;
  void record_epoch(StreamClock& clock, Held& held) CACHALOT_HELD;
  Event record_event(const KnownStream& stream, Held& held) CACHALOT_HELD;
  void ask_events(StreamClock& clock, Held& held) CACHALOT_HELD;
  bool event_is_done(Event event, Held& held) CACHALOT_HELD;
  bool may_record(const StreamClock& clock, Request request, std::size_t page_bytes,
                  const Held& held) const CACHALOT_HELD;
  bool owns_idle_pages(StreamKey stream, std::size_t page_bytes, const Held& held) const CACHALOT_HELD;
  void spare_events_of(StreamClock& clock, const Held& held) CACHALOT_HELD;

  HeapState& state_;
  std::unordered_map<StreamKey, std::unique_ptr<StreamClock>> clocks_ CACHALOT_GUARDED_BY(device_lock);
  std::vector<Event> spare_events_ CACHALOT_GUARDED_BY(device_lock);
  std::function<std::set<const StreamClock*>(const Held&)> referred_;
};

}  // namespace cachalot
