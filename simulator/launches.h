// Work of the device on streams: kernels, copies, fills. On a capturing stream it becomes a node of the graph. Of
// copies and fills, only the time is here; Copies has their bytes.
#pragma once

#include <cstddef>
#include <cstdint>

#include "simulator/abi.h"
#include "simulator/captures.h"
#include "simulator/config.h"
#include "simulator/devices.h"
#include "simulator/host_memory.h"
#include "simulator/lock.h"
#include "simulator/stream_state.h"
#include "simulator/streams.h"

namespace cachalot::simulator {

class Launches {
 public:
  Launches(const Config& config, HostMemory& host_memory, Devices& devices, Captures& captures, ImplicitOrder& order)
      : config_(config), host_memory_(host_memory), devices_(devices), captures_(captures), order_(order) {}

  // Takes the time that `launch_ns` of CACHALOT_SIM says, and waits while the stream's queue is full.
  void launch(StreamState& stream, cudaGraphNodeType type) CACHALOT_LOCKED;
  // Where copies take the bus, one between host and device does, and the host waits for pageable memory.
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

}  // namespace cachalot::simulator
