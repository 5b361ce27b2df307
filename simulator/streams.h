// Streams and events of the program, over those of SimulatedDevice, and captures.
//
// Time is the devices' virtual clock. What the host does for a stream takes real time instead: a host function holds a
// gate that opens when it has returned, and work behind it is not done before.
// The process's mutex guards everything here.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "cachalot/simulated_device.h"
#include "simulator/graphs.h"
#include "simulator/memory_uses.h"
#include "simulator/thread_state.h"

namespace cachalot::simulator {

struct Gate {
  bool open = false;
};
using Gates = std::vector<std::shared_ptr<Gate>>;

bool all_open(const Gates& gates);

struct Capture;

// A value that a stream writes to host or device memory when it gets there.
struct PendingWrite {
  Gates behind;
  void* to = nullptr;
  std::uint64_t value = 0;
  std::size_t bytes = 0;
};

// The driver queues so many launches on a stream; for one more the host waits until the oldest of them has run.
class LaunchQueue {
 public:
  // The launch ends at `end_ns`. Returns the time until which the host waits.
  std::int64_t push(std::int64_t end_ns) { return std::exchange(ends_ns_[next_++ % kLaunches], end_ns); }

 private:
  static constexpr std::size_t kLaunches = 1024;
  std::array<std::int64_t, kLaunches> ends_ns_{};
  std::size_t next_ = 0;
};

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
};

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

struct Capture {
  std::uint64_t id = 0;
  int device = 0;
  cudaStreamCaptureMode mode = cudaStreamCaptureModeGlobal;
  const ThreadState* thread = nullptr;  // that began it
  Graph* graph = nullptr;
  bool owns_graph = true;             // false: it goes into a graph of the program
  std::vector<StreamState*> streams;  // the first began it
};

}  // namespace cachalot::simulator
