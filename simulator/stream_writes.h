// Values that streams write to host or device memory when they get there (cuStreamWriteValue).
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>

#include "simulator/captures.h"
#include "simulator/copies.h"
#include "simulator/devices.h"
#include "simulator/host_memory.h"
#include "simulator/lock.h"
#include "simulator/stream_state.h"
#include "simulator/streams.h"
#include "simulator/use_checks.h"

namespace cachalot::simulator {

class StreamWrites {
 public:
  StreamWrites(HostMemory& host_memory, Devices& devices, Captures& captures, ImplicitOrder& order, UseChecks& uses,
               Copies& copies)
      : host_memory_(host_memory),
        devices_(devices),
        captures_(captures),
        order_(order),
        uses_(uses),
        copies_(copies) {}

  void launch(StreamState& stream, void* to, std::uint64_t value, std::size_t bytes) CACHALOT_LOCKED;
  bool are_pending() const CACHALOT_LOCKED { return !pending_.empty(); }
  void do_due() CACHALOT_LOCKED;
  // The memory is about to go: nothing is written to it any more, and no use of it lasts.
  void forget(const void* start, std::size_t bytes) CACHALOT_LOCKED;

 private:
  struct Write {
    Gates behind;
    void* to = nullptr;
    std::uint64_t value = 0;
    std::size_t bytes = 0;
  };

  void require_writable(const void* to, std::size_t bytes) CACHALOT_LOCKED;

  HostMemory& host_memory_ CACHALOT_UNDER_LOCK;
  Devices& devices_;
  Captures& captures_;
  ImplicitOrder& order_;
  UseChecks& uses_;
  Copies& copies_;
  std::multimap<std::int64_t, Write> pending_ CACHALOT_UNDER_LOCK;  // by the time they are due
};

}  // namespace cachalot::simulator
