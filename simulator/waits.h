// Questions of the host whether work is done, and waits for it. After a wait, pools keep no more than they may.
#pragma once

#include "cachalot/simulated_device.h"
#include "simulator/captures.h"
#include "simulator/config.h"
#include "simulator/devices.h"
#include "simulator/events.h"
#include "simulator/host_functions.h"
#include "simulator/lock.h"
#include "simulator/pools.h"
#include "simulator/stream_state.h"
#include "simulator/streams.h"

namespace cachalot::simulator {

class Waits {
 public:
  Waits(const Config& config, Devices& devices, Captures& captures, ImplicitOrder& order, HostFunctions& host_functions,
        Pools& pools)
      : config_(config),
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

 private:
  const Config& config_;
  Devices& devices_;
  Captures& captures_;
  ImplicitOrder& order_;
  HostFunctions& host_functions_;
  Pools& pools_;
};

}  // namespace cachalot::simulator
