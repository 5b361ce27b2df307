// With strict:1 of CACHALOT_SIM: tells of two copies or fills that use the same memory in no order, and of memory that
// goes while one of them uses it.
#pragma once

#include <cstddef>

#include "cachalot/device.h"
#include "simulator/devices.h"
#include "simulator/host_memory.h"
#include "simulator/lock.h"
#include "simulator/memory_uses.h"
#include "simulator/stream_state.h"
#include "simulator/streams.h"
#include "simulator/watch.h"

namespace cachalot::simulator {

class UseChecks {
 public:
  UseChecks(Watch& watch, MemoryUses& uses, HostMemory& host_memory, Devices& devices, ImplicitOrder& order)
      : watch_(watch), uses_(uses), host_memory_(host_memory), devices_(devices), order_(order) {}

  // `check` comes before a copy or fill of `call` is queued, and `add` after it: `to` is written, and `from` is read
  // if it is not null.
  void check(const char* call, StreamState& stream, const void* to, const void* from,
             std::size_t bytes) CACHALOT_LOCKED;
  void add(const char* call, StreamState& stream, const void* to, const void* from, std::size_t bytes) CACHALOT_LOCKED;
  // The memory is about to be freed in the order of the stream.
  void check_free(const char* call, StreamState& stream, const AddressRange& range) CACHALOT_LOCKED;
  // The memory is about to be unmapped.
  void check_unmap(const AddressRange& range) CACHALOT_LOCKED;
  // The memory has another owner from now on.
  void forget(const AddressRange& range) CACHALOT_LOCKED;
  // Launches of any stream so far come before the stream's next one.
  void order_behind_all(StreamState& stream) CACHALOT_LOCKED;

 private:
  bool lasts(const void* start, std::size_t bytes) const CACHALOT_LOCKED;
  template <typename Visit>
  void for_each(const StreamState& stream, const void* to, const void* from, std::size_t bytes,
                Visit&& visit) CACHALOT_LOCKED;

  Watch& watch_ CACHALOT_UNDER_LOCK;
  MemoryUses& uses_ CACHALOT_UNDER_LOCK;
  HostMemory& host_memory_ CACHALOT_UNDER_LOCK;
  Devices& devices_;
  ImplicitOrder& order_;
};

}  // namespace cachalot::simulator
