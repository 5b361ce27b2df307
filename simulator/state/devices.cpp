#include "simulator/state/devices.h"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>

#include "base/bytes.h"
#include "base/format.h"
#include "cachalot/errors.h"
#include "device/cuda_codes.h"
#include "simulator/base/report.h"
#include "simulator/base/thread_state.h"
#include "simulator/device/address_space.h"

namespace cachalot::simulator {
namespace {

constexpr Address kPreferredAddress = Address{1} << 40;  // so that addresses are the same in every run, if it is free

// Throws InvalidArgument if the system refuses to reserve `bytes`.
AddressRange reserve_addresses(std::size_t bytes) {
  constexpr int kFlags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
  const std::size_t mapped_bytes = bytes + kPhysicalUnit;  // so that an aligned start fits
  void* start =
      mmap(reinterpret_cast<void*>(kPreferredAddress), mapped_bytes, PROT_NONE, kFlags | MAP_FIXED_NOREPLACE, -1, 0);
  if (start == MAP_FAILED) start = mmap(nullptr, mapped_bytes, PROT_NONE, kFlags, -1, 0);
  if (start == MAP_FAILED) {
    throw InvalidArgument(formatted("CACHALOT_SIM: option address_space: the system refuses {} of address space ({})",
                                    format_bytes(bytes), std::strerror(errno)));
  }
  return {round_up(reinterpret_cast<Address>(start), kPhysicalUnit), bytes};
}

// Takes memory of the device for the driver. Throws cudaErrorMemoryAllocation if `bytes` are not free.
void take_for_driver(DeviceState& device, std::string_view what, std::size_t bytes) {
  SimulatedDevice& simulated = *device.simulated;
  if (simulated.take_for_driver(bytes)) return;
  const std::size_t free_bytes = simulated.free_bytes();
  if (!device.charge.lack) device.charge.lack = {what, bytes, free_bytes};
  note_once(formatted("device {} has no memory for {}, which takes {}: {} are free", device.ordinal, what,
                      format_bytes(bytes), format_bytes(free_bytes)));
  fail("cuDevicePrimaryCtxRetain", CudaCode::memory_allocation, "no memory for the context");
}

// Changes the memory held for the driver to `bytes`. Throws as take_for_driver does, and then changes nothing.
void hold_for_driver(DeviceState& device, std::string_view what, std::size_t& held_bytes, std::size_t bytes) {
  bytes = round_up(bytes, kPhysicalUnit);
  if (bytes > held_bytes) take_for_driver(device, what, bytes - held_bytes);
  if (bytes < held_bytes) device.simulated->give_back_for_driver(held_bytes - bytes);
  held_bytes = bytes;
}

}  // namespace

void DeviceState::make_new_context() {
  take_for_driver(*this, "the CUDA context", costs.context_bytes);
  charge.costs.context_bytes = costs.context_bytes;
  ++contexts;
  active = true;
}

void DeviceState::make_library(ContextLibrary library) {
  make_context();
  if (charge.costs.of(library) == costs.of(library)) return;
  take_for_driver(*this, to_string(library), costs.of(library));
  charge.costs.of(library) = costs.of(library);
}

cudaError_t DeviceState::set_limit(cudaLimit limit, std::size_t value) {
  Limits wanted = limits;
  if (const cudaError_t error = wanted.set(limit, value); error != cudaSuccess) return error;
  const MemoryLimits of_memory = wanted.of_memory();
  if (costs.context_bytes > 0)
    hold_for_driver(*this, "the limits of the context", limit_bytes, simulator::limit_bytes(*gpu, of_memory));
  limits = wanted;
  charge.limits = {std::max(charge.limits.stack_bytes, of_memory.stack_bytes),
                   std::max(charge.limits.heap_bytes, of_memory.heap_bytes),
                   std::max(charge.limits.printf_bytes, of_memory.printf_bytes)};
  charge.limit_bytes = std::max(charge.limit_bytes, limit_bytes);
  return cudaSuccess;
}

void DeviceState::add_graph(std::size_t kernel_nodes) {
  const GraphCount more{graphs.graphs + 1, graphs.kernel_nodes + kernel_nodes};
  if (costs.context_bytes > 0)
    hold_for_driver(*this, "an executable graph", graph_bytes, simulator::graph_bytes(more.kernel_nodes));
  graphs = more;
  charge.graphs = {std::max(charge.graphs.graphs, more.graphs),
                   std::max(charge.graphs.kernel_nodes, more.kernel_nodes)};
  charge.graph_bytes = std::max(charge.graph_bytes, graph_bytes);
}

void DeviceState::remove_graph(std::size_t kernel_nodes) {
  graphs = {graphs.graphs - 1, graphs.kernel_nodes - kernel_nodes};
  if (costs.context_bytes > 0)
    hold_for_driver(*this, "an executable graph", graph_bytes, simulator::graph_bytes(graphs.kernel_nodes));
}

void DeviceState::forget_context() {
  active = false;
  graphs = {};
  graph_bytes = 0;
  charge.graphs = {};
  charge.graph_bytes = 0;
  limits = {};
  limit_bytes = 0;
  charge.costs = {};
  charge.limits = {};
  charge.limit_bytes = 0;
}

Devices::Devices(const Config& config, ContentStore& content)
    : shared_(config.shared_path.empty() ? nullptr : std::make_unique<SharedMemory>(config.shared_path)),
      reserved_(reserve_addresses(config.address_space_bytes)) {
  limit_addresses(reserved_);
  for (int ordinal = 0; ordinal < config.devices; ++ordinal) devices_.push_back(make(config, ordinal, content));
  on_clock_ = devices_.front().get();
}

std::unique_ptr<DeviceState> Devices::make(const Config& config, int ordinal, ContentStore& content) {
  SimulatedDevice::Config simulated;
  simulated.index = ordinal;
  simulated.memory_bytes = config.memory_bytes;
  simulated.latency = config.latency();
  simulated.log_calls = !config.log_path.empty();
  simulated.captures_refuse = false;
  simulated.mapping_waits = config.mapping_waits;
  simulated.refuses_sizing = config.refuses_sizing;
  simulated.completion_hints = false;
  simulated.memory_freed = [&content, ordinal](std::uint64_t first, std::size_t bytes) {
    content.forget({ordinal, first}, bytes);
  };
  if (shared_) simulated.account = shared_->account(config.machine_number(ordinal), config.memory_bytes);
  simulated.name = std::string(config.gpu->product);
  auto device = std::make_unique<DeviceState>();
  device->ordinal = ordinal;
  device->machine_number = config.machine_number(ordinal);
  device->gpu = config.gpu;
  device->simulated = std::make_unique<SimulatedDevice>(simulated);
  device->simulated->set_faults(config.faults);
  device->costs = config.context.costs;
  device->charge.estimate = config.context.estimate;
  device->peers.resize(static_cast<std::size_t>(config.devices));
  return device;
}

DeviceState& Devices::at(int ordinal) {
  if (ordinal < 0 || ordinal >= count()) throw CudaError("cudaSetDevice", cudaErrorInvalidDevice, "no such device");
  return *devices_[static_cast<std::size_t>(ordinal)];
}

// The host has one time, but each device has a clock of its own: it is set to the time of the device used before it.
SimulatedDevice& Devices::on_clock(DeviceState& device) {
  if (&device != on_clock_) {
    const std::int64_t behind_ns = clock_ns() - device.simulated->clock_ns();
    if (behind_ns > 0) device.simulated->advance(behind_ns);
    on_clock_ = &device;
  }
  return *device.simulated;
}

DeviceState* Devices::find_owner(Address address) {
  if (!hold(reinterpret_cast<void*>(address))) return nullptr;
  for (const auto& device : devices_) {
    if (device->simulated->memory_at(address)) return device.get();
  }
  return nullptr;
}

DeviceState& Devices::owner(const char* call, Address address) {
  DeviceState* device = find_owner(address);
  if (!device) fail(call, CudaCode::invalid_value, "not an address of device memory");
  return *device;
}

// The first id of a context that is not primary: ids of primary contexts are smaller.
constexpr unsigned long long kFirstId = 1ull << 32;

DeviceState& Contexts::current() {
  ThreadState& thread = this_thread();
  thread.has_context = true;
  DeviceState& device = devices_.at(thread.device);
  if (own() == nullptr) device.make_context();
  return device;
}

Context* Contexts::own() {
  const CUcontext handle = this_thread().context;
  if (handle == nullptr) return nullptr;
  if (Context* const context = contexts_.find(handle)) return context;
  fail("cuCtxGetCurrent", CudaCode::context_is_destroyed, "the current context was destroyed");
}

void Contexts::require(const char* call, ContextRule rule) const {
  if (!this_thread().has_context && config_.contexts >= rule) [[unlikely]]
    fail(call, CudaCode::device_uninitialized, "the thread has no current context");
}

Context& Contexts::make(const DeviceState& device) {
  Context& context = contexts_.make();
  context.device = device.ordinal;
  context.id = kFirstId + made_++;
  return context;
}

void Contexts::destroy_all(const DeviceState& device) {
  contexts_.destroy_if([&](const Context& context) { return context.device == device.ordinal; });
}

StreamState& Contexts::legacy_stream_of(const StreamState& stream) {
  const Context* const own = contexts_.find(stream.context);
  return own ? *own->default_stream : devices_.at(stream.device).legacy_stream;
}

VectorClock& Contexts::before_destroyed_of(const StreamState& stream) {
  Context* const own = contexts_.find(stream.context);
  return own ? own->before_destroyed : devices_.at(stream.device).before_destroyed;
}

}  // namespace cachalot::simulator
