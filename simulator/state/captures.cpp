#include "simulator/state/captures.h"

#include <algorithm>

#include "cachalot/errors.h"
#include "device/cuda_codes.h"

namespace cachalot::simulator {
namespace {

void add_missing(Nodes& nodes, const Nodes& more) {
  for (GraphNode* node : more) {
    if (std::find(nodes.begin(), nodes.end(), node) == nodes.end()) nodes.push_back(node);
  }
}

bool forbids(const Capture& capture, const ThreadState& thread) {
  if (thread.capture_mode == cudaStreamCaptureModeRelaxed) return false;
  if (capture.thread == &thread) return capture.mode != cudaStreamCaptureModeRelaxed;
  return thread.capture_mode == cudaStreamCaptureModeGlobal && capture.mode == cudaStreamCaptureModeGlobal;
}

}  // namespace

void Captures::require_safe(const char* call) {
  bool is_refused = false;
  for (auto& [id, capture] : captures_) {
    if (!forbids(capture, this_thread())) continue;
    devices_.on_clock(capture.device).spoil_capture(capture.streams.front()->name);
    is_refused = true;
  }
  if (is_refused) fail(call, CudaCode::capture_unsupported, "not allowed while a stream captures");
}

void Captures::refuse(const char* call, const StreamState& stream) {
  if (!stream.capture) return;
  devices_.on_clock(stream.device).spoil_capture(stream.name);
  fail(call, CudaCode::capture_unsupported, "the stream captures");
}

void Captures::begin(StreamState& stream, cudaStreamCaptureMode mode, Graph* into, const Nodes& dependencies) {
  if (&stream == &contexts_.legacy_stream_of(stream))
    fail("cudaStreamBeginCapture", CudaCode::capture_unsupported, "the legacy stream cannot capture");
  const std::uint64_t id = devices_.on_clock(stream.device).begin_capture(stream.name);
  Graph& graph = into ? *into : graphs_.make();
  stream.capture = &captures_
                        .emplace(id, Capture{.id = id,
                                             .device = stream.device,
                                             .mode = mode,
                                             .thread = &this_thread(),
                                             .graph = &graph,
                                             .owns_graph = into == nullptr,
                                             .streams = {&stream}})
                        .first->second;
  stream.frontier = dependencies;
}

Graph& Captures::end(StreamState& stream) {
  constexpr auto kCall = "cudaStreamEndCapture";
  Capture* capture = stream.capture;
  if (capture && capture->mode != cudaStreamCaptureModeRelaxed && capture->thread != &this_thread())
    throw CudaError(kCall, cudaErrorStreamCaptureWrongThread, "begun by another thread");
  try {
    devices_.on_clock(stream.device).end_capture(stream.name);
  } catch (const CudaError& error) {
    if (error.code() == cudaErrorStreamCaptureInvalidated) destroy_graph_and_forget(*capture);
    throw;
  }
  Graph& graph = *capture->graph;
  forget(*capture);
  return graph;
}

cudaStreamCaptureStatus Captures::status(const StreamState& stream) {
  SimulatedDevice& device = devices_.on_clock(stream.device);
  if (!device.capture_status(stream.name).capturing) return cudaStreamCaptureStatusNone;
  return device.is_capture_spoilt(stream.name) ? cudaStreamCaptureStatusInvalidated : cudaStreamCaptureStatusActive;
}

GraphNode& Captures::add_node(StreamState& stream, cudaGraphNodeType type) {
  GraphNode& node = graphs_.add(*stream.capture->graph, type, stream.frontier);
  stream.frontier = {&node};
  return node;
}

void Captures::note_unknown(const void* start, std::size_t bytes) {
  for (const auto& [id, capture] : captures_) {
    const Nodes& nodes = capture.graph->nodes;
    if (!nodes.empty()) nodes.back()->unknown.push_back({start, bytes});
  }
}

bool Captures::record_write(const StreamState& stream, const void* to, std::size_t bytes) {
  if (stream.capture && devices_.hold(to)) note_unknown(to, bytes);
  return stream.capture != nullptr;
}

void Captures::join(StreamState& stream, std::uint64_t capture, const Nodes& behind) {
  Capture& joined = captures_.at(capture);
  if (!stream.capture) joined.streams.push_back(&stream);
  stream.capture = &joined;
  add_missing(stream.frontier, behind);
}

void Captures::leave(StreamState& stream) {
  Capture* const capture = stream.capture;
  if (!capture) return;
  if (capture->streams.front() == &stream)
    destroy_graph_and_forget(*capture);
  else
    std::erase(capture->streams, &stream);
}

void Captures::destroy_all(const DeviceState& device) {
  for (auto at = captures_.begin(); at != captures_.end();) {
    Capture& capture = (at++)->second;
    if (capture.device != device.ordinal) continue;
    device.simulated->stream_destroy(capture.streams.front()->name);  // ends it
    destroy_graph_and_forget(capture);
  }
}

void Captures::destroy_graph_and_forget(Capture& capture) {
  if (capture.owns_graph) graphs_.destroy(*capture.graph);
  forget(capture);
}

void Captures::forget(Capture& capture) {
  for (StreamState* captured : capture.streams) {
    captured->capture = nullptr;
    captured->frontier.clear();
  }
  captures_.erase(capture.id);
}

}  // namespace cachalot::simulator
