// The state of a stream of the program, over the stream of SimulatedDevice.
//
// Time is the devices' virtual clock. The host's work for a stream takes real time instead: a host function holds a
// gate that opens when it has returned, and work behind it is not done before.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "cachalot/device.h"
#include "simulator/models/cuda_abi.h"
#include "simulator/state/graphs.h"
#include "simulator/state/launch_order.h"

namespace cachalot::simulator {

struct Gate {
  bool open = false;
};
using Gates = std::vector<std::shared_ptr<Gate>>;

inline bool all_open(const Gates& gates) {
  return std::all_of(gates.begin(), gates.end(), [](const auto& gate) { return gate->open; });
}
// Drops the open ones, and adds those of `more` that are closed.
inline void add_closed(Gates& gates, const Gates& more) {
  std::erase_if(gates, [](const auto& gate) { return gate->open; });
  for (const auto& gate : more) {
    if (!gate->open && std::find(gates.begin(), gates.end(), gate) == gates.end()) gates.push_back(gate);
  }
}

// A LaunchQueue has the launches that the driver queues on a stream; when it is full, the host waits until the oldest
// of them has run.
class LaunchQueue {
 public:
  // The launch ends at `end_ns`. Returns the time until which the host waits.
  std::int64_t push(std::int64_t end_ns) { return std::exchange(ends_ns_[next_++ % kLaunches], end_ns); }

 private:
  static constexpr std::size_t kLaunches = 1024;
  std::array<std::int64_t, kLaunches> ends_ns_{};
  std::size_t next_ = 0;
};

struct Capture;

struct StreamState {
  int device = 0;
  CUcontext context = nullptr;  // null: the device's primary one
  Stream name = nullptr;        // on the simulated device
  unsigned int flags = 0;
  int priority = 0;
  unsigned long long id = 0;
  LaunchQueue queue;
  Gates gates;  // of host functions queued on it, or on streams it has waited for
  StreamOrder order;
  Capture* capture = nullptr;
  Nodes frontier;  // while capturing: what its next node depends on

  bool is_blocking() const { return (flags & cudaStreamNonBlocking) == 0; }
};

}  // namespace cachalot::simulator
