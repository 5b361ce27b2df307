// The program's events, and the host's waits for them, for streams and for devices.
#pragma once

#include <cstdint>

#include "cachalot/simulated_device.h"
#include "simulator/base/lock.h"
#include "simulator/base/registry.h"
#include "simulator/base/watch.h"
#include "simulator/device/vector_clock.h"
#include "simulator/models/config.h"
#include "simulator/models/cuda_abi.h"
#include "simulator/state/captures.h"
#include "simulator/state/devices.h"
#include "simulator/state/graphs.h"
#include "simulator/state/launch_order.h"
#include "simulator/state/launches.h"
#include "simulator/state/pools.h"
#include "simulator/state/stream_state.h"
#include "simulator/state/streams.h"

namespace cachalot::simulator {

struct EventState {
  int device = 0;
  CUcontext context = nullptr;  // as a stream's
  Event simulated = nullptr;
  unsigned int flags = 0;
  bool recorded = false;
  std::uint64_t capture = 0;  // recorded inside this capture
  Nodes frontier;             // then: the nodes it marks
  VectorClock before;         // otherwise: the launches it marks
  Gates gates;
};

class Events {
 public:
  Events(Watch& watch, const LaunchOrder& launches, Devices& devices, Contexts& contexts, Captures& captures,
         ImplicitOrder& order)
      : watch_(watch),
        launches_(launches),
        devices_(devices),
        contexts_(contexts),
        captures_(captures),
        order_(order) {}

  // Throws cudaErrorInvalidResourceHandle.
  EventState& at(const char* call, cudaEvent_t handle) CACHALOT_LOCKED { return events_.at(call, handle); }
  EventState& create(unsigned int flags) CACHALOT_LOCKED;
  void destroy(EventState& event) CACHALOT_LOCKED;

  // Events go with their context and their device.
  void destroy_all(CUcontext context) CACHALOT_LOCKED;
  void destroy_all(const DeviceState& device) CACHALOT_LOCKED;

  void record(EventState& event, StreamState& stream) CACHALOT_LOCKED;
  // The stream waits for the event.
  void wait(StreamState& stream, EventState& event) CACHALOT_LOCKED;
  // Elapsed between two events' work, in milliseconds.
  float elapsed_ms(const EventState& start, const EventState& end) CACHALOT_LOCKED;

 private:
  void wait_on_other_device(StreamState& stream, EventState& event) CACHALOT_LOCKED;

  Watch& watch_ CACHALOT_UNDER_LOCK;
  const LaunchOrder& launches_ CACHALOT_UNDER_LOCK;
  Devices& devices_;
  Contexts& contexts_;
  Captures& captures_;
  ImplicitOrder& order_;
  Registry<EventState, cudaEvent_t> events_ CACHALOT_UNDER_LOCK;
};

// Questions of the host whether work is done, and waits for it. After a wait, pools keep no more than they may.
class Waits {
 public:
  Waits(const Config& config, LaunchOrder& launches, Devices& devices, Captures& captures, ImplicitOrder& order,
        HostFunctions& host_functions, Pools& pools)
      : config_(config),
        launches_(launches),
        devices_(devices),
        captures_(captures),
        order_(order),
        host_functions_(host_functions),
        pools_(pools) {}

  bool query(EventState& event) CACHALOT_LOCKED;
  bool query(StreamState& stream) CACHALOT_LOCKED;

  // Each may let the lock go: the event or stream may be gone afterwards.
  void synchronize(EventState& event) CACHALOT_LOCKED;
  void synchronize(StreamState& stream) CACHALOT_LOCKED;
  void synchronize(DeviceState& device) CACHALOT_LOCKED;

  // Each notes that a call of another kind has waited, on a GPU, for all work so far.
  void have_waited_for(const StreamState& stream) CACHALOT_LOCKED { see(stream.order.before); }
  void have_waited_for(const DeviceState& device) CACHALOT_LOCKED;

 private:
  // The host has found these launches done.
  void see(const VectorClock& launches) CACHALOT_LOCKED {
    if (launches_.is_kept()) launches_.host_saw(launches);
  }

  const Config& config_;
  LaunchOrder& launches_ CACHALOT_UNDER_LOCK;
  Devices& devices_;
  Captures& captures_;
  ImplicitOrder& order_;
  HostFunctions& host_functions_;
  Pools& pools_;
};

}  // namespace cachalot::simulator
