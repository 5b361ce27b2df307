#include "simulator/host_functions.h"

#include <thread>

#include "simulator/thread_state.h"

namespace cachalot::simulator {

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
  uses_.order_behind_all(stream);  // it may wait for anything
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
