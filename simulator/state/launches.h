// Work on streams: kernels, copies and fills of the device, and functions of the program on the host.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <utility>

#include "simulator/base/lock.h"
#include "simulator/models/config.h"
#include "simulator/models/cuda_abi.h"
#include "simulator/state/captures.h"
#include "simulator/state/cuda_host_memory.h"
#include "simulator/state/devices.h"
#include "simulator/state/launch_order.h"
#include "simulator/state/stream_state.h"
#include "simulator/state/streams.h"

namespace cachalot::simulator {

// Work of the device. On a capturing stream it becomes a node of the graph. Of copies and fills, only the time is here; Copies has
// their bytes.
class Launches {
 public:
  Launches(const Config& config, HostMemory& host_memory, Devices& devices, Captures& captures, ImplicitOrder& order)
      : config_(config), host_memory_(host_memory), devices_(devices), captures_(captures), order_(order) {}

  // Takes the time that `launch_ns` of CACHALOT_SIM says, and waits while the stream's queue is full.
  void launch(StreamState& stream, cudaGraphNodeType type) CACHALOT_LOCKED;
  // Launches a copy. If copies take the bus, one between host and device does, and the host waits for pageable memory.
  void launch_copy(StreamState& stream, const void* to, const void* from, std::size_t bytes) CACHALOT_LOCKED;
  // Takes this time, and finds room in any queue.
  void launch_for(StreamState& stream, cudaGraphNodeType type, std::int64_t duration_ns) CACHALOT_LOCKED;
  // Throws cudaErrorInvalidResourceHandle if the stream is not of the current device.
  void launch_kernel(StreamState& stream, const cudaKernelNodeParams& kernel) CACHALOT_LOCKED;
  // A node of a graph that is launched on the stream, which does not capture.
  void launch_node(StreamState& stream, const GraphNode& node) CACHALOT_LOCKED;
  // The launch of a graph, on a stream that captures.
  void capture_graph(StreamState& stream, const GraphExec& exec) CACHALOT_LOCKED;

 private:
  // Returns the node if the stream captures, otherwise null.
  GraphNode* launch_or_capture(StreamState& stream, cudaGraphNodeType type) CACHALOT_LOCKED;
  void wait_for_room(StreamState& stream, std::int64_t end_ns) CACHALOT_LOCKED;

  const Config& config_;
  HostMemory& host_memory_ CACHALOT_UNDER_LOCK;
  Devices& devices_;
  Captures& captures_;
  ImplicitOrder& order_;
};

// Streams call functions of the program on the host, on a thread of its own, in real time. Work behind one waits for
// its gate. A wait lets process_mutex go: streams and events may be gone afterwards.
class HostFunctions {
 public:
  // `settle`, called under the lock, ends each step of the thread, as it ends each call of the program.
  HostFunctions(Devices& devices, const LaunchOrder& launches, Captures& captures, ImplicitOrder& order,
                std::function<void()> settle)
      : devices_(devices), launches_(launches), captures_(captures), order_(order), settle_(std::move(settle)) {}

  void launch(StreamState& stream, cudaHostFn_t function, void* data) CACHALOT_LOCKED;
  // Both let the lock go while they wait. The gates must be copies: their stream or event may go meanwhile.
  void wait_for(const Gates& gates) CACHALOT_LOCKED;
  void wait_for_all(const DeviceState& device) CACHALOT_LOCKED;

 private:
  struct Queued {
    int device = 0;
    std::int64_t due_ns = 0;
    cudaHostFn_t function = nullptr;
    void* data = nullptr;
    std::shared_ptr<Gate> gate;
  };

  void start_thread() CACHALOT_LOCKED;
  void run();
  Queued take_next() CACHALOT_LOCKED;
  void finish(const Queued& done) CACHALOT_LOCKED;

  Devices& devices_;
  const LaunchOrder& launches_ CACHALOT_UNDER_LOCK;
  Captures& captures_;
  ImplicitOrder& order_;
  const std::function<void()> settle_;
  std::deque<Queued> queue_ CACHALOT_UNDER_LOCK;
  bool has_thread_ CACHALOT_UNDER_LOCK = false;
  std::condition_variable_any queued_;
  std::condition_variable_any gate_opened_;
};

}  // namespace cachalot::simulator
