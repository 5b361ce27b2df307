// Captures of streams, by CUDA's rules and modes. The simulated devices know them too, and keep the rules of one
// device.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "simulator/base/lock.h"
#include "simulator/base/thread_state.h"
#include "simulator/models/cuda_abi.h"
#include "simulator/state/devices.h"
#include "simulator/state/graphs.h"
#include "simulator/state/stream_state.h"

namespace cachalot::simulator {

struct Capture {
  std::uint64_t id = 0;
  int device = 0;
  cudaStreamCaptureMode mode = cudaStreamCaptureModeGlobal;
  const ThreadState* thread = nullptr;  // that began it
  Graph* graph = nullptr;
  bool owns_graph = true;             // false if it goes into a graph of the program
  std::vector<StreamState*> streams;  // the first began it
};

class Captures {
 public:
  Captures(Devices& devices, Contexts& contexts, Graphs& graphs)
      : devices_(devices), contexts_(contexts), graphs_(graphs) {}

  void begin(StreamState& stream, cudaStreamCaptureMode mode, Graph* into, const Nodes& dependencies) CACHALOT_LOCKED;
  Graph& end(StreamState& stream) CACHALOT_LOCKED;
  cudaStreamCaptureStatus status(const StreamState& stream) CACHALOT_LOCKED;
  // Adds a node behind the stream's frontier, which it becomes.
  GraphNode& add_node(StreamState& stream, cudaGraphNodeType type) CACHALOT_LOCKED;
  // Notes that the newest node of each capture writes unknown values whenever its graph is launched.
  void note_unknown(const void* start, std::size_t bytes) CACHALOT_LOCKED;
  // Returns whether the stream captures a write: nothing is written then, and each launch makes the memory unknown.
  bool record_write(const StreamState& stream, const void* to, std::size_t bytes) CACHALOT_LOCKED;
  // The stream, behind these nodes from now on, belongs to the capture.
  void join(StreamState& stream, std::uint64_t capture, const Nodes& behind) CACHALOT_LOCKED;
  // The stream is about to be destroyed.
  void leave(StreamState& stream) CACHALOT_LOCKED;
  void destroy_all(const DeviceState& device) CACHALOT_LOCKED;

  // Throws 900 for a call that is unsafe while a stream captures, if the thread's mode forbids it, and spoils those
  // captures.
  void require_safe(const char* call) CACHALOT_LOCKED;
  // Throws 900 if the stream captures, and spoils the capture, for a call that no mode allows.
  void refuse(const char* call, const StreamState& stream) CACHALOT_LOCKED;

 private:
  void destroy_graph_and_forget(Capture& capture) CACHALOT_LOCKED;
  void forget(Capture& capture) CACHALOT_LOCKED;

  Devices& devices_;
  Contexts& contexts_;
  Graphs& graphs_ CACHALOT_UNDER_LOCK;
  std::map<std::uint64_t, Capture> captures_ CACHALOT_UNDER_LOCK;
};

}  // namespace cachalot::simulator
