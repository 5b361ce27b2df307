#include "simulator/process.h"

#include <pthread.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <thread>

#include "base/bytes.h"
#include "base/format.h"
#include "cachalot/errors.h"
#include "device/address_space.h"
#include "device/cuda_codes.h"
#include "simulator/calls.h"

namespace cachalot::simulator {
namespace {

constexpr std::int64_t kPollNs = 1000;                   // a program's turn round a loop that asks and asks again
constexpr Address kPreferredAddress = Address{1} << 40;  // the same in every run, where it is free

AddressRange reserved;  // the devices' addresses: nothing else of the process gets them
std::atomic<bool> forked{false};

// Throws InvalidArgument when the host will not reserve that much.
AddressRange reserve_addresses(std::size_t bytes) {
  constexpr int kFlags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
  const std::size_t mapped_bytes = bytes + kPhysicalUnit;  // so that an aligned start is in it
  void* start =
      mmap(reinterpret_cast<void*>(kPreferredAddress), mapped_bytes, PROT_NONE, kFlags | MAP_FIXED_NOREPLACE, -1, 0);
  if (start == MAP_FAILED) start = mmap(nullptr, mapped_bytes, PROT_NONE, kFlags, -1, 0);
  if (start == MAP_FAILED) {
    throw InvalidArgument(formatted("CACHALOT_SIM_ADDRESS_SPACE: the system refuses {} of address space ({})",
                                    format_bytes(bytes), std::strerror(errno)));
  }
  return {round_up(reinterpret_cast<Address>(start), kPhysicalUnit), bytes};
}

bool is_device_address(const void* pointer) {
  return reinterpret_cast<Address>(pointer) - reserved.address < reserved.bytes;
}

const void* offset(const void* pointer, std::size_t bytes) { return static_cast<const char*>(pointer) + bytes; }

}  // namespace

std::atomic<Process*> Process::instance{nullptr};

// ---- The process ----------------------------------------------------------------------------------------------------

Process* Process::make(cudaError_t& error) {
  static std::mutex making;
  static cudaError_t failure = cudaSuccess;
  error = cudaErrorInitializationError;
  if (forked) return nullptr;
  const std::lock_guard lock(making);
  if (Process* made = instance) return made;
  error = failure;
  if (failure != cudaSuccess) return nullptr;
  try {
    const Config config = read_config();
    if (config.devices == 0) {
      error = failure = cudaErrorNoDevice;
      return nullptr;
    }
    instance = new Process(config);
    pthread_atfork(before_fork, after_fork, [] {
      forked = true;
      instance = nullptr;
    });
    return instance;
  } catch (const InvalidArgument& mistake) {
    print_error("cachalot simulator: {}\n", mistake.what());
    error = failure = cudaErrorInitializationError;
    return nullptr;
  }
}

// The child must find no half-written line of the log: it would write it a second time.
void Process::before_fork() {
  Process& process = *instance.load();
  process.mutex.lock();
  process.report.flush_log();
}

void Process::after_fork() { instance.load()->mutex.unlock(); }

Process::Process(const Config& settings) : config(settings) {
  reserved = reserve_addresses(config.address_space_bytes);
  limit_addresses(reserved);
  report.open(config.log_path, config.report_path, config.devices);
  if (config.is_strict) watch.begin(!report.is_wanted());
  make_devices();
}

void Process::make_devices() {
  for (int ordinal = 0; ordinal < config.devices; ++ordinal) {
    auto device = std::make_unique<DeviceState>();
    SimulatedDevice::Config simulated;
    simulated.index = ordinal;
    simulated.memory_bytes = config.memory_bytes;
    simulated.latency = config.latency();
    simulated.log_calls = report.logs();
    simulated.captures_refuse = false;
    simulated.mapping_waits = config.mapping_waits;
    simulated.completion_hints = false;
    simulated.memory_freed = [this, ordinal](std::uint64_t first, std::size_t bytes) {
      content.forget({ordinal, first}, bytes);
    };
    simulated.name = std::string(config.gpu->product);
    device->ordinal = ordinal;
    device->simulated = std::make_unique<SimulatedDevice>(simulated);
    device->simulated->set_faults(config.faults);
    device->peers.resize(static_cast<std::size_t>(config.devices));
    device->legacy_stream.device = ordinal;
    device->legacy_stream.id = next_stream_id_++;
    device->legacy_stream.order = uses_.new_stream();
    device->default_pool = device->pool = &pools.registry.make();
    device->default_pool->device = ordinal;
    devices_.push_back(std::move(device));
  }
  on_clock_ = devices_.front().get();
}

// ---- Devices --------------------------------------------------------------------------------------------------------

DeviceState& Process::device(int ordinal) {
  if (ordinal < 0 || ordinal >= device_count())
    throw CudaError("cudaSetDevice", cudaErrorInvalidDevice, "no such device");
  return *devices_[static_cast<std::size_t>(ordinal)];
}

DeviceState& Process::current() {
  ThreadState& thread = this_thread();
  thread.has_context = true;
  DeviceState& state = device(thread.device);
  if (own_context() == nullptr) make_context(state);
  return state;
}

void Process::make_context(DeviceState& device) {
  device.contexts += device.active ? 0 : 1;
  device.active = true;
}

void Process::require_context(const char* call, ContextRule rule) const {
  if (!this_thread().has_context && config.contexts >= rule) [[unlikely]]
    fail(call, CudaCode::device_uninitialized, "the thread has no current context");
}

// The host has one time, and each device its clock: a device takes over the time of the one used before it.
SimulatedDevice& Process::on_clock(DeviceState& device) {
  if (&device != on_clock_) {
    const std::int64_t behind_ns = on_clock_->simulated->clock_ns() - device.simulated->clock_ns();
    if (behind_ns > 0) device.simulated->advance(behind_ns);
    on_clock_ = &device;
  }
  return *device.simulated;
}

void Process::reset(DeviceState& device) {
  destroy_captures(device);
  while (device.host_functions > 0) gate_opened_.wait(mutex);
  on_clock(device).synchronize();
  do_due_writes();
  const auto is_its = [&](const auto& object) { return object.device == device.ordinal; };
  contexts.destroy_if(is_its);
  events_.destroy_if(is_its);
  streams_.destroy_if(is_its);
  std::erase_if(per_thread_streams_, [&](const auto& entry) { return is_its(entry.second); });
  device.legacy_stream.queue = {};
  device.legacy_stream.gates.clear();
  destroy_pools(device);
  std::erase_if(reservations_, [&](const auto& entry) { return is_its(entry.second); });
  std::erase_if(imports_, [&](const auto& entry) { return find_owner(entry.first) == &device; });
  host_memory.forget_all(device.ordinal);
  watch.all_gone(device.ordinal);
  device.simulated->reset();
  std::fill(device.peers.begin(), device.peers.end(), false);
  device.flags = 0;
  device.active = false;
  ++device.resets;
}

void Process::destroy_captures(const DeviceState& device) {
  for (auto at = captures_.begin(); at != captures_.end();) {
    Capture& capture = (at++)->second;
    if (capture.device != device.ordinal) continue;
    device.simulated->stream_destroy(capture.streams.front()->name);  // ends it
    if (capture.owns_graph) graphs.destroy(*capture.graph);
    forget_capture(capture);
  }
}

// What was allocated from them goes with the device's memory.
void Process::destroy_pools(DeviceState& device) {
  std::erase_if(pools.blocks, [&](const auto& entry) { return entry.second.pool->device == device.ordinal; });
  pools.registry.destroy_if(
      [&](const MemoryPool& pool) { return pool.device == device.ordinal && &pool != device.default_pool; });
  *device.default_pool = MemoryPool{};
  device.default_pool->device = device.ordinal;
  device.pool = device.default_pool;
}

DeviceState* Process::find_owner(Address address) {
  if (!is_device_address(reinterpret_cast<void*>(address))) return nullptr;
  for (const auto& device : devices_) {
    if (device->simulated->memory_at(address)) return device.get();
  }
  return nullptr;
}

DeviceState& Process::owner(const char* call, Address address) {
  DeviceState* device = find_owner(address);
  if (!device) fail(call, CudaCode::invalid_value, "not an address of device memory");
  return *device;
}

// ---- Streams and events ---------------------------------------------------------------------------------------------

bool all_open(const Gates& gates) {
  return std::all_of(gates.begin(), gates.end(), [](const auto& gate) { return gate->open; });
}

namespace {

void add_closed(Gates& gates, const Gates& more) {
  std::erase_if(gates, [](const auto& gate) { return gate->open; });
  for (const auto& gate : more) {
    if (!gate->open && std::find(gates.begin(), gates.end(), gate) == gates.end()) gates.push_back(gate);
  }
}

void add_missing(Nodes& nodes, const Nodes& more) {
  for (GraphNode* node : more) {
    if (std::find(nodes.begin(), nodes.end(), node) == nodes.end()) nodes.push_back(node);
  }
}

}  // namespace

StreamState& Process::stream(const char* call, cudaStream_t handle) {
  if (handle && handle != cudaStreamLegacy && handle != cudaStreamPerThread) return streams_.at(call, handle);
  DeviceState& device = current();
  const bool is_legacy = handle ? handle == cudaStreamLegacy : !this_thread().has_own_default_stream;
  if (!is_legacy) return per_thread_stream(device.ordinal);
  const Context* const own = own_context();
  return own ? *own->default_stream : device.legacy_stream;
}

StreamState& Process::create_stream(unsigned int flags, int priority) {
  const int device = current().ordinal;
  StreamState& stream = streams_.make();
  prepare_stream(stream, device, this_thread().context, flags);
  stream.priority = priority;
  watch.made(Owned::stream, &stream, device);
  return stream;
}

void Process::prepare_stream(StreamState& stream, int device, CUcontext context, unsigned int flags) {
  stream.device = device;
  stream.context = context;
  stream.name = Registry<StreamState, cudaStream_t>::handle(stream);
  stream.flags = flags;
  stream.id = next_stream_id_++;
  stream.order = uses_.new_stream();
  simulated(device).stream_create(stream.name);
  const bool is_blocking = (flags & cudaStreamNonBlocking) == 0 && config.legacy_stream_waits;
  if (is_blocking && !context) simulated(device).set_blocking(stream.name);  // it knows the primary context alone
}

StreamState& Process::per_thread_stream(int device) {
  static std::uint64_t threads = 0;
  // Of a thread's last destructors: those of static objects may still call.
  struct Ending {
    std::uint64_t number = 0;
    ~Ending() { thread_ends(number); }
  };
  thread_local Ending ending;
  ThreadState& thread = this_thread();
  if (thread.number == 0) thread.number = ending.number = ++threads;
  const PerThreadKey key{.device = device, .context = thread.context, .thread = thread.number};
  const auto [at, is_new] = per_thread_streams_.try_emplace(key);
  if (is_new) prepare_stream(at->second, device, thread.context, cudaStreamDefault);
  return at->second;
}

void Process::end_per_thread_streams(const std::function<bool(const PerThreadKey&)>& goes) {
  for (auto at = per_thread_streams_.begin(); at != per_thread_streams_.end();) {
    if (!goes(at->first)) {
      ++at;
      continue;
    }
    end_stream(at->second);
    at = per_thread_streams_.erase(at);
  }
}

void Process::thread_ends(std::uint64_t number) {
  Process* process = instance;
  if (!process) return;
  const Lock lock(process->mutex);
  process->end_per_thread_streams([&](const PerThreadKey& key) { return key.thread == number; });
}

void Process::require_current_device(const char* call, const StreamState& stream) const {
  if (stream.device != this_thread().device)
    fail(call, CudaCode::invalid_resource_handle, "the stream belongs to another device than the current one");
}

void Process::destroy_stream(StreamState& stream) {
  end_stream(stream);
  watch.gone(Owned::stream, &stream);
  streams_.destroy(stream);
}

void Process::end_stream(StreamState& stream) {
  SimulatedDevice& device = simulated(stream.device);
  if ((stream.flags & cudaStreamNonBlocking) == 0) {
    before_destroyed_of(stream).join(stream.order.before);
    if (Context* const own = contexts.find(stream.context))
      own->destroyed_ready_ns = std::max(own->destroyed_ready_ns, device.stream_ready_ns(stream.name));
  }
  device.stream_destroy(stream.name);
  if (Capture* capture = stream.capture) {
    if (capture->streams.front() == &stream) {
      if (capture->owns_graph) graphs.destroy(*capture->graph);
      forget_capture(*capture);
    } else {
      std::erase(capture->streams, &stream);
    }
  }
}

// The simulated device orders the legacy stream of the primary context and its blocking streams in time. The rest is done here.
void Process::join_implicitly(StreamState& stream) {
  if (!config.legacy_stream_waits || (stream.flags & cudaStreamNonBlocking) != 0 || stream.capture) return;
  if (stream.context) [[unlikely]]
    join_time(stream);
  if (devices_[static_cast<std::size_t>(stream.device)]->host_functions > 0) join_gates(stream);
  if (watch.is_on()) join_order(stream);
}

template <typename Visit>
void Process::for_each_blocking(const StreamState& legacy, Visit&& visit) {
  const auto visit_blocking = [&](StreamState& stream) {
    if (stream.device != legacy.device || stream.context != legacy.context || &stream == &legacy) return;
    if ((stream.flags & cudaStreamNonBlocking) == 0) visit(stream);
  };
  streams_.for_each(visit_blocking);
  for (auto& [key, stream] : per_thread_streams_) visit_blocking(stream);
}

void Process::join_gates(StreamState& stream) {
  StreamState& legacy = legacy_stream_of(stream);
  if (&stream != &legacy) return add_closed(stream.gates, legacy.gates);
  for_each_blocking(legacy, [&](StreamState& other) { add_closed(stream.gates, other.gates); });
}

void Process::join_order(StreamState& stream) {
  StreamState& legacy = legacy_stream_of(stream);
  if (&stream != &legacy) return stream.order.before.join(legacy.order.before);
  stream.order.before.join(before_destroyed_of(stream));
  for_each_blocking(legacy, [&](StreamState& other) { stream.order.before.join(other.order.before); });
}

// For streams of a context beside the primary one.
void Process::join_time(StreamState& stream) {
  SimulatedDevice& device = simulated(stream.device);
  StreamState& legacy = legacy_stream_of(stream);
  const auto wait_until = [&](std::int64_t ns) { device.stream_wait_until(stream.name, ns); };
  if (&stream != &legacy) return wait_until(device.stream_ready_ns(legacy.name));
  refuse_implicit_capture("a call on the legacy stream", legacy, true);
  wait_until(contexts.find(stream.context)->destroyed_ready_ns);
  for_each_blocking(legacy, [&](StreamState& other) { wait_until(device.stream_ready_ns(other.name)); });
}

void Process::refuse_implicit_capture(const char* call, const StreamState& legacy, bool spoils) {
  bool captures = false;
  for_each_blocking(legacy, [&](StreamState& other) {
    if (!other.capture) return;
    captures = true;
    if (spoils) simulated(other.device).spoil_capture(other.name);
  });
  if (captures) fail(call, CudaCode::capture_implicit, "the legacy stream waits for a blocking stream that captures");
}

// For a call that no mode allows on a stream that captures.
void Process::refuse_captured(const char* call, const StreamState& stream) {
  if (!stream.capture) return;
  simulated(stream.device).spoil_capture(stream.name);
  fail(call, CudaCode::capture_unsupported, "the stream captures");
}

EventState& Process::create_event(unsigned int flags) {
  DeviceState& device = current();
  const Event simulated = on_clock(device).event_create();
  EventState& event = events_.make();
  event.device = device.ordinal;
  event.context = this_thread().context;
  event.simulated = simulated;
  event.flags = flags;
  watch.made(Owned::event, &event, device.ordinal);
  return event;
}

void Process::destroy_event(EventState& event) {
  simulated(event.device).event_destroy(event.simulated);
  watch.gone(Owned::event, &event);
  events_.destroy(event);
}

void Process::record(EventState& event, StreamState& stream) {
  constexpr auto kCall = "cudaEventRecord";
  if (event.device != stream.device || event.context != stream.context)
    fail(kCall, CudaCode::invalid_resource_handle, "event and stream of two contexts");
  join_implicitly(stream);
  simulated(stream.device).event_record(event.simulated, stream.name);
  event.recorded = true;
  event.capture = stream.capture ? stream.capture->id : 0;
  event.frontier = stream.frontier;
  if (watch.is_on()) event.before = stream.order.before;
  event.gates.clear();
  if (!stream.gates.empty()) add_closed(event.gates, stream.gates);
}

void Process::wait(StreamState& stream, EventState& event) {
  constexpr auto kCall = "cudaStreamWaitEvent";
  if (!event.recorded) return;
  join_implicitly(stream);
  if (event.device != stream.device) {
    if (event.capture != 0 || stream.capture) fail(kCall, CudaCode::capture_isolation, "a capture on two devices");
    const std::int64_t done_ns = simulated(event.device).event_done_ns(event.simulated);
    simulated(stream.device).stream_wait_until(stream.name, done_ns);
  } else {
    simulated(stream.device).stream_wait(stream.name, event.simulated);
    if (event.capture != 0) {
      Capture& capture = captures_.at(event.capture);
      if (!stream.capture) capture.streams.push_back(&stream);
      stream.capture = &capture;
      add_missing(stream.frontier, event.frontier);
    }
  }
  if (watch.is_on() && event.capture == 0) stream.order.before.join(event.before);
  if (!event.gates.empty()) add_closed(stream.gates, event.gates);
}

// A loop that polls must come to an end, even where calls take no time.
void Process::note_failed_poll(SimulatedDevice& device) {
  if (!config.latencies) device.advance(kPollNs);
}

bool Process::query(EventState& event) {
  if (event.capture == 0) require_safe("cudaEventQuery");
  SimulatedDevice& device = simulated(event.device);
  if (!device.event_query(event.simulated)) {
    note_failed_poll(device);
    return false;
  }
  return all_open(event.gates);
}

bool Process::query(StreamState& stream) {
  SimulatedDevice& device = simulated(stream.device);
  refuse_captured("cudaStreamQuery", stream);
  require_safe("cudaStreamQuery");
  join_implicitly(stream);
  if (!device.stream_query(stream.name)) {
    device.advance(kPollNs);
    return false;
  }
  return all_open(stream.gates);
}

void Process::wait_for(const Gates& gates) {
  while (!all_open(gates)) gate_opened_.wait(mutex);
}

void Process::synchronize(EventState& event) {
  if (event.capture == 0) require_safe("cudaEventSynchronize");
  const int device = event.device;
  const Event simulated_event = event.simulated;
  const Gates gates = event.gates;  // a copy: the event may be gone when the wait is over
  wait_for(gates);
  simulated(device).event_synchronize(simulated_event);
  pools_trim();
}

void Process::synchronize(StreamState& stream) {
  refuse_captured("cudaStreamSynchronize", stream);
  require_safe("cudaStreamSynchronize");
  join_implicitly(stream);
  const int device = stream.device;
  const Stream name = stream.name;
  const Gates gates = stream.gates;
  wait_for(gates);
  simulated(device).stream_synchronize(name);
  pools_trim();
}

void Process::synchronize(DeviceState& device) {
  on_clock(device).refuse_while_capturing("cudaDeviceSynchronize");
  require_safe("cudaDeviceSynchronize");
  while (device.host_functions > 0) gate_opened_.wait(mutex);
  on_clock(device).synchronize();
  pools_trim();
}

float Process::elapsed_ms(const EventState& start, const EventState& end) {
  const std::int64_t from = simulated(start.device).event_done_ns(start.simulated);
  const std::int64_t to = simulated(end.device).event_done_ns(end.simulated);
  return static_cast<float>(static_cast<double>(to - from) / 1e6);
}

// ---- Work -----------------------------------------------------------------------------------------------------------

void Process::wait_for_room(StreamState& stream, std::int64_t end_ns) {
  if (const std::int64_t until_ns = stream.queue.push(end_ns); until_ns > 0) on_clock_->simulated->advance_to(until_ns);
}

void Process::launch(StreamState& stream, cudaGraphNodeType type) {
  join_implicitly(stream);
  const std::int64_t end_ns = simulated(stream.device).launch(stream.name, config.launch_ns);
  if (stream.capture) {
    capture_node(stream, type).duration_ns = config.launch_ns;
  } else {
    wait_for_room(stream, end_ns);
  }
}

void Process::launch_copy(StreamState& stream, const void* to, const void* from, std::size_t bytes) {
  const bool to_device = is_device_address(to);
  if (!config.copies_take_the_bus || stream.capture || to_device == is_device_address(from))
    return launch(stream, cudaGraphNodeTypeMemcpy);
  const HostCopy copy{.direction = to_device ? CopyDirection::to_device : CopyDirection::to_host,
                      .bytes = bytes,
                      .pinned = host_memory.is_pinned(to_device ? from : to, bytes)};
  join_implicitly(stream);
  wait_for_room(stream, simulated(stream.device).launch_copy(stream.name, copy));
}

void Process::launch_for(StreamState& stream, cudaGraphNodeType type, std::int64_t duration_ns) {
  join_implicitly(stream);
  simulated(stream.device).launch(stream.name, duration_ns);
  if (stream.capture) capture_node(stream, type).duration_ns = duration_ns;
}

void Process::advance(std::int64_t ns) { on_clock_->simulated->advance(ns); }

std::int64_t Process::clock_ns() const { return on_clock_->simulated->clock_ns(); }

void Process::launch_kernel(StreamState& stream, const cudaKernelNodeParams& kernel) {
  require_current_device("cudaLaunchKernel", stream);
  join_implicitly(stream);
  const std::int64_t end_ns = simulated(stream.device).launch(stream.name, config.launch_ns);
  if (!stream.capture) return wait_for_room(stream, end_ns);
  GraphNode& node = capture_node(stream, cudaGraphNodeTypeKernel);
  node.duration_ns = config.launch_ns;
  node.kernel = kernel;
}

void Process::launch_host_function(StreamState& stream, cudaHostFn_t function, void* data) {
  SimulatedDevice& device = simulated(stream.device);
  join_implicitly(stream);
  device.launch(stream.name, 0);
  if (stream.capture) {
    GraphNode& node = capture_node(stream, cudaGraphNodeTypeHost);
    node.host_function = function;
    node.host_data = data;
    return;
  }
  if (watch.is_on()) uses_.order_behind_all(stream.order);  // it may wait for anything
  auto gate = std::make_shared<Gate>();
  host_functions_.push_back({stream.device, device.stream_ready_ns(stream.name), function, data, gate});
  add_closed(stream.gates, {gate});
  ++devices_[static_cast<std::size_t>(stream.device)]->host_functions;
  if (!has_worker_) std::thread([this] { run_host_functions(); }).detach();
  has_worker_ = true;
  host_function_queued_.notify_one();
}

// On a thread of its own, as the driver's. It waits for the work before the function as a synchronization does.
void Process::run_host_functions() {
  mutex.lock();
  while (true) {
    while (host_functions_.empty()) host_function_queued_.wait(mutex);
    const HostFunction next = host_functions_.front();
    host_functions_.pop_front();
    SimulatedDevice& device = simulated(next.device);
    device.advance_to(next.due_ns);
    error_of(watch, [this] { return settle(), cudaSuccess; });
    mutex.unlock();
    this_thread().in_host_function = true;
    next.function(next.data);
    this_thread().in_host_function = false;
    mutex.lock();
    next.gate->open = true;
    --devices_[static_cast<std::size_t>(next.device)]->host_functions;
    error_of(watch, [this] { return settle(), cudaSuccess; });
    gate_opened_.notify_all();
  }
}

void Process::launch_graph(StreamState& stream, GraphExec& exec) {
  if (stream.capture) {
    simulated(stream.device).launch(stream.name, 0);
    GraphNode& node = capture_node(stream, cudaGraphNodeTypeGraph);
    for (const GraphNode* launched : exec.nodes) node.duration_ns += launched->duration_ns;
    return;
  }
  join_implicitly(stream);
  for (const GraphNode* node : exec.nodes) {
    if (node->type == cudaGraphNodeTypeHost) {
      launch_host_function(stream, node->host_function, node->host_data);
    } else if (node->type == cudaGraphNodeTypeEventRecord) {
      record(event("cudaGraphLaunch", node->event), stream);
    } else if (node->type == cudaGraphNodeTypeWaitEvent) {
      wait(stream, event("cudaGraphLaunch", node->event));
    } else {
      wait_for_room(stream, simulated(stream.device).launch(stream.name, node->duration_ns));
    }
  }
}

// Device memory, or host memory that CUDA knows.
void Process::require_writable(const void* to, std::size_t bytes) {
  if (is_device_address(to)) return for_each_piece(to, bytes, [](const Place&, std::size_t, std::size_t) {});
  const HostRange* range = host_memory.find(to);
  if (!range || !host_memory.find(offset(to, bytes - 1)))
    fail("cuStreamWriteValue", CudaCode::invalid_value, "neither device memory nor pinned host memory");
}

void Process::write_value(StreamState& stream, void* to, std::uint64_t value, std::size_t bytes) {
  require_writable(to, bytes);
  SimulatedDevice& device = simulated(stream.device);
  join_implicitly(stream);
  device.launch(stream.name, 0);
  if (stream.capture) {
    capture_node(stream, static_cast<cudaGraphNodeType>(CU_GRAPH_NODE_TYPE_BATCH_MEM_OP));
    return;
  }
  PendingWrite write{{}, to, value, bytes};
  add_closed(write.behind, stream.gates);
  writes_.emplace(device.stream_ready_ns(stream.name), std::move(write));
}

void Process::forget_writes(const void* start, std::size_t bytes) {
  if (watch.is_on()) uses_.forget({reinterpret_cast<Address>(start), bytes});
  std::erase_if(writes_, [&](const auto& queued) {
    const auto* to = static_cast<const char*>(queued.second.to);
    return to < offset(start, bytes) && offset(to, queued.second.bytes) > start;
  });
}

void Process::do_due_writes() {
  const std::int64_t now_ns = on_clock_->simulated->clock_ns();
  for (auto at = writes_.begin(); at != writes_.end() && at->first <= now_ns;) {
    if (!all_open(at->second.behind)) {
      ++at;
      continue;
    }
    const PendingWrite write = std::move(at->second);
    at = writes_.erase(at);
    copy_now(write.to, &write.value, write.bytes);
  }
}

// ---- Use of memory --------------------------------------------------------------------------------------------------

// Calls use(range, writes) for each side whose use lasts until the stream is done: of host memory, pinned memory only.
template <typename Use>
void Process::for_each_use(const StreamState& stream, const void* to, const void* from, std::size_t bytes, Use&& use) {
  if (!watch.is_on() || stream.capture || bytes == 0) return;
  const auto lasts = [&](const void* start) {
    return start && (is_device_address(start) || host_memory.is_pinned(start, bytes));
  };
  if (lasts(to)) use(AddressRange{reinterpret_cast<Address>(to), bytes}, true);
  if (lasts(from)) use(AddressRange{reinterpret_cast<Address>(from), bytes}, false);
}

void Process::check_use(const char* call, StreamState& stream, const void* to, const void* from, std::size_t bytes) {
  join_implicitly(stream);
  for_each_use(stream, to, from, bytes, [&](const AddressRange& range, bool writes) {
    const MemoryUse* other = uses_.find_unordered(range, writes, stream.order, clock_ns());
    if (!other) return;
    watch.note(formatted("{} {} memory that {} on another stream still {}, and nothing orders the two", call,
                         writes ? "writes" : "reads", other->call, other->writes ? "writes" : "reads"),
               other->stack);
  });
}

void Process::add_use(const char* call, StreamState& stream, const void* to, const void* from, std::size_t bytes) {
  const CallStack stack = watch.is_on() ? CallStack::capture() : CallStack();
  if (watch.is_on() && !stream.capture) uses_.launched(stream.order);
  for_each_use(stream, to, from, bytes, [&](const AddressRange& range, bool writes) {
    MemoryUse use{.range = range, .writes = writes, .call = call, .stack = stack};
    use.end_ns = simulated(stream.device).stream_ready_ns(stream.name);
    uses_.add(std::move(use), stream.order);
  });
}

void Process::check_free(const char* call, StreamState& stream, const AddressRange& range) {
  if (!watch.is_on() || stream.capture) return;
  join_implicitly(stream);
  const MemoryUse* other = uses_.find_unordered(range, true, stream.order, clock_ns());
  if (!other) return;
  watch.note(formatted("{} frees memory that {} on another stream still {}, and nothing orders the two", call,
                       other->call, other->writes ? "writes" : "reads"),
             other->stack);
}

void Process::check_unmap(const AddressRange& range) {
  if (!watch.is_on()) return;
  const MemoryUse* other = uses_.find_pending(range, clock_ns());
  if (!other) return;
  watch.note(formatted("cuMemUnmap of memory that {} still {}", other->call, other->writes ? "writes" : "reads"),
             other->stack);
}

// ---- Captures -------------------------------------------------------------------------------------------------------

void Process::require_safe(const char* call) {
  if (captures_.empty()) return;
  const ThreadState& thread = this_thread();
  const auto forbids = [&](const Capture& capture) {
    if (thread.capture_mode == cudaStreamCaptureModeRelaxed) return false;
    if (capture.thread == &thread) return capture.mode != cudaStreamCaptureModeRelaxed;
    return thread.capture_mode == cudaStreamCaptureModeGlobal && capture.mode == cudaStreamCaptureModeGlobal;
  };
  bool is_refused = false;
  for (auto& [id, capture] : captures_) {
    if (!forbids(capture)) continue;
    simulated(capture.device).spoil_capture(capture.streams.front()->name);
    is_refused = true;
  }
  if (is_refused) fail(call, CudaCode::capture_unsupported, "not allowed while a stream captures");
}

void Process::begin_capture(StreamState& stream, cudaStreamCaptureMode mode, Graph* into, const Nodes& dependencies) {
  if (&stream == &legacy_stream_of(stream))
    fail("cudaStreamBeginCapture", CudaCode::capture_unsupported, "the legacy stream cannot capture");
  const std::uint64_t id = simulated(stream.device).begin_capture(stream.name);
  Graph& graph = into ? *into : graphs.make();
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

Graph& Process::end_capture(StreamState& stream) {
  constexpr auto kCall = "cudaStreamEndCapture";
  Capture* capture = stream.capture;
  if (capture && capture->mode != cudaStreamCaptureModeRelaxed && capture->thread != &this_thread())
    throw CudaError(kCall, cudaErrorStreamCaptureWrongThread, "begun by another thread");
  try {
    simulated(stream.device).end_capture(stream.name);
  } catch (const CudaError& error) {
    if (error.code() == cudaErrorStreamCaptureInvalidated) {
      if (capture->owns_graph) graphs.destroy(*capture->graph);
      forget_capture(*capture);
    }
    throw;
  }
  Graph& graph = *capture->graph;
  forget_capture(*capture);
  return graph;
}

void Process::forget_capture(Capture& capture) {
  for (StreamState* captured : capture.streams) {
    captured->capture = nullptr;
    captured->frontier.clear();
  }
  captures_.erase(capture.id);
}

cudaStreamCaptureStatus Process::capture_status(const StreamState& stream) {
  if (stream.context && config.legacy_stream_waits && &stream == &legacy_stream_of(stream))
    refuse_implicit_capture("cudaStreamIsCapturing", stream, false);
  const CaptureStatus status = simulated(stream.device).capture_status(stream.name);
  if (!status.capturing) return cudaStreamCaptureStatusNone;
  return simulated(stream.device).is_capture_spoilt(stream.name) ? cudaStreamCaptureStatusInvalidated
                                                                 : cudaStreamCaptureStatusActive;
}

GraphNode& Process::capture_node(StreamState& stream, cudaGraphNodeType type) {
  GraphNode& node = graphs.add(*stream.capture->graph, type, stream.frontier);
  stream.frontier = {&node};
  return node;
}

// ---- Memory ---------------------------------------------------------------------------------------------------------

void* Process::malloc(DeviceState& device, std::size_t bytes, MemoryPool* pool) {
  auto address = on_clock(device).malloc(bytes);
  if (!address && pool && !pool->kept.empty()) {
    trim_pool(*pool, 0);
    address = device.simulated->malloc(bytes);
  }
  if (report.is_wanted()) report.note_allocation(*device.simulated, "cudaMalloc", bytes, address.has_value());
  void* const start = reinterpret_cast<void*>(address.value_or(0));
  if (start && !pool) watch.made(Owned::device_memory, start, device.ordinal, bytes);
  return start;
}

void Process::free(const char* call, Address address) {
  DeviceState& device = device_count() == 1 ? *devices_.front() : owner(call, address);
  while (device.host_functions > 0) gate_opened_.wait(mutex);
  if (!writes_.empty() || watch.is_on()) {
    if (const auto memory = device.simulated->memory_at(address))
      forget_writes(reinterpret_cast<void*>(memory->range.address), memory->range.bytes);
  }
  on_clock(device).free(address);
  watch.gone(Owned::device_memory, reinterpret_cast<void*>(address));
}

// Calls access(place, offset, bytes) for each stretch of device memory with physical numbers of its own.
template <typename Access>
void Process::for_each_piece(const void* start, std::size_t bytes, Access&& access) {
  constexpr auto kCall = "cudaMemcpy";
  Address address = reinterpret_cast<Address>(start);
  for (std::size_t done = 0; done < bytes;) {
    DeviceState& device = owner(kCall, address);
    const MemoryAt memory = *device.simulated->memory_at(address);
    if (!memory.accessible) fail(kCall, CudaCode::invalid_value, "mapped memory without access");
    const std::size_t part = std::min(bytes - done, memory.range.bytes - (address - memory.range.address));
    access(Place{device.ordinal, memory.physical}, done, part);
    address += part;
    done += part;
  }
}

void Process::copy(void* to, const void* from, std::size_t bytes, std::size_t whole_bytes) {
  if (whole_bytes <= config.copy_bytes) return copy_now(to, from, bytes);
  const auto check = [](const Place&, std::size_t, std::size_t) {};
  if (is_device_address(from)) for_each_piece(from, bytes, check);
  if (is_device_address(to)) return for_each_piece(to, bytes, check);
  if (is_device_address(from))
    std::memset(to, 0, bytes);
  else
    std::memmove(to, from, bytes);
}

void Process::copy_now(void* to, const void* from, std::size_t bytes) {
  const bool to_device = is_device_address(to);
  const bool from_device = is_device_address(from);
  if (to_device && from_device) {
    std::vector<char> buffer(bytes);  // whole: the ranges may overlap
    copy_now(buffer.data(), from, bytes);
    copy_now(to, buffer.data(), bytes);
  } else if (to_device) {
    for_each_piece(to, bytes, [&](const Place& place, std::size_t done, std::size_t part) {
      content.write(place, offset(from, done), part);
    });
  } else if (from_device) {
    for_each_piece(from, bytes, [&](const Place& place, std::size_t done, std::size_t part) {
      content.read(static_cast<char*>(to) + done, place, part);
    });
  } else {
    std::memmove(to, from, bytes);
  }
}

void Process::fill(void* to, std::uint64_t pattern, std::size_t pattern_bytes, std::size_t bytes,
                   std::size_t whole_bytes) {
  if (is_device_address(to)) {
    for_each_piece(to, bytes, [&](const Place& place, std::size_t, std::size_t part) {
      if (whole_bytes <= config.copy_bytes) content.fill(place, pattern, pattern_bytes, part);
    });
    return;
  }
  for (std::size_t done = 0; done < bytes; done += pattern_bytes)
    std::memcpy(static_cast<char*>(to) + done, &pattern, pattern_bytes);
}

void Process::know_variable(const Variable& variable) {
  if (host_memory.find(variable.start)) return;
  host_memory.add({HostRange::Kind::variable, variable.start, variable.bytes, 0, current().ordinal});
}

void Process::pools_trim() {
  // A pool gives back what it keeps above its threshold.
  pools.registry.for_each([&](MemoryPool& pool) { trim_pool(pool, pool.release_threshold); });
}

void Process::trim_pool(MemoryPool& pool, std::size_t to_bytes) {
  while (!pool.kept.empty() && pool.reserved_bytes > to_bytes) {
    const auto last = std::prev(pool.kept.end());
    const auto [bytes, address] = *last;
    pool.kept.erase(last);
    pool.reserved_bytes -= bytes;
    forget_writes(reinterpret_cast<void*>(address), bytes);
    on_clock(device(pool.device)).free_without_waiting(address);
  }
}

void Process::write_report() {
  Process* process = instance;
  if (!process) return;
  const Lock lock(process->mutex);
  process->watch.tell_what_is_left();
  if (!process->report.is_wanted()) return;
  std::vector<const SimulatedDevice*> devices;
  for (const auto& device : process->devices_) devices.push_back(device->simulated.get());
  process->report.write(devices, process->watch);
}

namespace {

// When the library is unloaded, behind the program's own static destructors.
__attribute__((destructor)) void at_exit() { Process::write_report(); }

}  // namespace

void Process::write_log() {
  for (const auto& device : devices_) report.log(device->ordinal, device->simulated->take_log());
}

}  // namespace cachalot::simulator
