// With strict:1 of CACHALOT_SIM: reports two copies or fills that use the same memory in no order, and memory that is
// released while one of them uses it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "cachalot/call_stack.h"
#include "cachalot/device.h"
#include "simulator/base/lock.h"
#include "simulator/base/watch.h"
#include "simulator/state/cuda_host_memory.h"
#include "simulator/state/devices.h"
#include "simulator/state/launch_order.h"
#include "simulator/state/reuse_races.h"
#include "simulator/state/stream_state.h"
#include "simulator/state/streams.h"

namespace cachalot::simulator {

struct MemoryUse {
  AddressRange range;
  bool writes = false;
  std::size_t stream = 0;
  std::uint64_t launch = 0;
  std::int64_t end_ns = 0;
  const char* call = "";
  CallStack stack;
};

// The copies and fills that are underway. Only certain conflicts are found: both calls are known to use the bytes, one of them
// writes, the first is not done yet, and nothing that the program asked for puts one behind the other. The memory that kernels use
// is not known. process_mutex guards everything here.
class MemoryUses {
 public:
  explicit MemoryUses(const LaunchOrder& order) : order_(order) {}

  void add(MemoryUse use) { pending_.push_back(std::move(use)); }
  // Returns a use of the range that is underway at `now_ns` and may not meet one by the stream: it or that one writes, and
  // it does not come before. Returns null if there is none.
  const MemoryUse* find_unordered(const AddressRange& range, bool writes, const StreamOrder& order,
                                  std::int64_t now_ns);
  // Returns a use of the range that is underway at `now_ns`, in whatever order, or null.
  const MemoryUse* find_pending(const AddressRange& range, std::int64_t now_ns);
  // The memory has another owner from now on.
  void forget(const AddressRange& range);

 private:
  void forget_done(std::int64_t now_ns);

  const LaunchOrder& order_;
  std::vector<MemoryUse> pending_;
};

class UseChecks {
 public:
  UseChecks(Watch& watch, LaunchOrder& launches, HostMemory& host_memory, Devices& devices, ImplicitOrder& order)
      : watch_(watch),
        launches_(launches),
        uses_(launches),
        races_(launches),
        host_memory_(host_memory),
        devices_(devices),
        order_(order) {}

  // It knows no block without races:1, and then does nothing.
  ReuseRaces& races() CACHALOT_LOCKED { return races_; }
  // Returns whether forget() must be called.
  bool are_on() const CACHALOT_LOCKED { return launches_.is_kept(); }

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

 private:
  void add_for_races(const char* call, StreamState& stream, const void* start, std::size_t bytes) CACHALOT_LOCKED;
  bool lasts(const void* start, std::size_t bytes) const CACHALOT_LOCKED;
  template <typename Visit>
  void for_each(const StreamState& stream, const void* to, const void* from, std::size_t bytes,
                Visit&& visit) CACHALOT_LOCKED;

  Watch& watch_ CACHALOT_UNDER_LOCK;
  LaunchOrder& launches_ CACHALOT_UNDER_LOCK;
  MemoryUses uses_ CACHALOT_UNDER_LOCK;  // while the watch is on
  ReuseRaces races_ CACHALOT_UNDER_LOCK;
  HostMemory& host_memory_ CACHALOT_UNDER_LOCK;
  Devices& devices_;
  ImplicitOrder& order_;
};

}  // namespace cachalot::simulator
