#include "simulator/state/launches.h"

#include <thread>

#include "device/cuda_codes.h"
#include "simulator/base/thread_state.h"

namespace cachalot::simulator {

void Launches::wait_for_room(StreamState& stream, std::int64_t end_ns) {
  if (const std::int64_t until_ns = stream.queue.push(end_ns); until_ns > 0) devices_.advance_to(until_ns);
}

GraphNode* Launches::launch_or_capture(StreamState& stream, cudaGraphNodeType type) {
  order_.join(stream);
  const std::int64_t end_ns = devices_.on_clock(stream.device).launch(stream.name, config_.launch_ns);
  if (!stream.capture) {
    wait_for_room(stream, end_ns);
    return nullptr;
  }
  GraphNode& node = captures_.add_node(stream, type);
  node.duration_ns = config_.launch_ns;
  return &node;
}

void Launches::launch(StreamState& stream, cudaGraphNodeType type) { launch_or_capture(stream, type); }

void Launches::launch_kernel(StreamState& stream, const cudaKernelNodeParams& kernel) {
  if (stream.device != this_thread().device) {
    fail("cudaLaunchKernel", CudaCode::invalid_resource_handle,
         "the stream belongs to another device than the current one");
  }
  if (GraphNode* const node = launch_or_capture(stream, cudaGraphNodeTypeKernel)) node->kernel = kernel;
}

void Launches::launch_copy(StreamState& stream, const void* to, const void* from, std::size_t bytes) {
  const bool to_device = devices_.hold(to);
  if (!config_.copies_take_the_bus || stream.capture || to_device == devices_.hold(from))
    return launch(stream, cudaGraphNodeTypeMemcpy);
  const HostCopy copy{.direction = to_device ? CopyDirection::to_device : CopyDirection::to_host,
                      .bytes = bytes,
                      .pinned = host_memory_.is_pinned(to_device ? from : to, bytes)};
  order_.join(stream);
  wait_for_room(stream, devices_.on_clock(stream.device).launch_copy(stream.name, copy));
}

void Launches::launch_for(StreamState& stream, cudaGraphNodeType type, std::int64_t duration_ns) {
  order_.join(stream);
  devices_.on_clock(stream.device).launch(stream.name, duration_ns);
  if (stream.capture) captures_.add_node(stream, type).duration_ns = duration_ns;
}

void Launches::launch_node(StreamState& stream, const GraphNode& node) {
  wait_for_room(stream, devices_.on_clock(stream.device).launch(stream.name, node.duration_ns));
}

void Launches::capture_graph(StreamState& stream, const GraphExec& exec) {
  devices_.on_clock(stream.device).launch(stream.name, 0);
  GraphNode& node = captures_.add_node(stream, cudaGraphNodeTypeGraph);
  for (const GraphNode* launched : exec.nodes) node.duration_ns += launched->duration_ns;
}

void HostFunctions::launch(StreamState& stream, cudaHostFn_t function, void* data) {
  SimulatedDevice& device = devices_.on_clock(stream.device);
  order_.join(stream);
  device.launch(stream.name, 0);
  if (stream.capture) {
    GraphNode& node = captures_.add_node(stream, cudaGraphNodeTypeHost);
    node.host_function = function;
    node.host_data = data;
    return;
  }
  if (launches_.is_kept()) launches_.put_behind_all(stream.order);  // it may wait for anything
  auto gate = std::make_shared<Gate>();
  queue_.push_back({stream.device, device.stream_ready_ns(stream.name), function, data, gate});
  add_closed(stream.gates, {gate});
  ++devices_.at(stream.device).host_functions;
  start_thread();
  queued_.notify_one();
}

void HostFunctions::start_thread() {
  if (!has_thread_) std::thread([this] { run(); }).detach();
  has_thread_ = true;
}

// On a thread of its own, as the driver's.
void HostFunctions::run() {
  while (true) {
    process_mutex.lock();
    const Queued next = take_next();
    process_mutex.unlock();
    this_thread().in_host_function = true;
    next.function(next.data);
    this_thread().in_host_function = false;
    const Lock lock(process_mutex);
    finish(next);
  }
}

// The thread waits for the work before the function as a synchronization does.
HostFunctions::Queued HostFunctions::take_next() {
  while (queue_.empty()) queued_.wait(process_mutex);
  Queued next = queue_.front();
  queue_.pop_front();
  devices_.on_clock(next.device).advance_to(next.due_ns);
  settle_();
  return next;
}

void HostFunctions::finish(const Queued& done) {
  done.gate->open = true;
  --devices_.at(done.device).host_functions;
  settle_();
  gate_opened_.notify_all();
}

void HostFunctions::wait_for(const Gates& gates) {
  while (!all_open(gates)) gate_opened_.wait(process_mutex);
}

void HostFunctions::wait_for_all(const DeviceState& device) {
  while (device.host_functions > 0) gate_opened_.wait(process_mutex);
}

}  // namespace cachalot::simulator
