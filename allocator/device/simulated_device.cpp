#include "cachalot/simulated_device.h"

#include <utility>

#include "base/check.h"
#include "device/simulated_device_state.h"

CACHALOT_BEGIN

SimulatedDevice::SimulatedDevice(const Config& config) : impl_(std::make_unique<Impl>(config)) {}
SimulatedDevice::SimulatedDevice() : SimulatedDevice(Config{}) {}
SimulatedDevice::~SimulatedDevice() = default;

int SimulatedDevice::index() const { return impl_->config.index; }

DeviceProperties SimulatedDevice::properties() const {
  const Config& config = impl_->config;
  return {.name = config.name,
          .total_bytes = config.memory_bytes,
          .virtual_memory = config.virtual_memory,
          .page_bytes = config.virtual_memory ? kPhysicalUnit : 0,
          .max_mappings = config.max_mappings,
          .rdma_capable = false,
          .shares_by_descriptor = config.virtual_memory};
}

MemoryInfo SimulatedDevice::memory_info() {
  const Lock lock(impl_->mutex);
  impl_->book.begin(DeviceCall::memory_info);
  impl_->book.succeeded();
  return {.free_bytes = impl_->memory.free_bytes(), .total_bytes = impl_->config.memory_bytes};
}

void SimulatedDevice::reset() {
  const Lock lock(impl_->mutex);
  impl_->wait_for_all_work();
  impl_->memory.release_all();
  impl_->forget_freed_memory();
  impl_->streams.destroy_all();
  impl_->host_memory.free_all();
  impl_->imports.clear();
  impl_->peers.clear();
  withdraw_exports(impl_->exporter);
}

// Time.

std::int64_t SimulatedDevice::clock_us() { return clock_ns() / 1000; }

std::int64_t SimulatedDevice::clock_ns() const {
  const Lock lock(impl_->mutex);
  return impl_->book.clock_ns();
}

void SimulatedDevice::advance(std::int64_t ns) {
  CACHALOT_REQUIRE(ns >= 0, "advance by {} ns: time does not run backwards", ns);
  const Lock lock(impl_->mutex);
  impl_->book.advance(ns);
}

void SimulatedDevice::advance_to(std::int64_t clock_ns) {
  const Lock lock(impl_->mutex);
  impl_->book.wait_until(clock_ns);
}

std::int64_t SimulatedDevice::do_beside(const std::function<void()>& work) {
  const std::int64_t before = clock_ns();
  work();
  const Lock lock(impl_->mutex);
  const std::int64_t after = impl_->book.clock_ns();
  impl_->book.turn_back_to(before);
  return after - before;
}

// Hazards.

void SimulatedDevice::handed_out(Address address, std::size_t bytes, Stream stream) {
  if (!impl_->config.check_hazards || address == 0) return;
  const Lock lock(impl_->mutex);
  for (const SimulatedStream* before : impl_->streams.implicitly_before(impl_->streams.even_dead(stream)))
    impl_->checker->joined(stream, before->name());
  impl_->checker->handed_out(address, bytes, stream, impl_->locate(address, bytes));
}

void SimulatedDevice::given_back(Address address) {
  if (!impl_->config.check_hazards || address == 0) return;
  const Lock lock(impl_->mutex);
  impl_->checker->given_back(address, impl_->locate(address, impl_->checker->handout_bytes(address)));
}

// Observation.

std::uint64_t SimulatedDevice::dead_stream_calls() const {
  const Lock lock(impl_->mutex);
  return impl_->streams.dead_stream_calls();
}

std::uint64_t SimulatedDevice::count(DeviceCall call) const {
  const Lock lock(impl_->mutex);
  return impl_->book.count(call);
}

double SimulatedDevice::driver_us() const {
  const Lock lock(impl_->mutex);
  return impl_->book.driver_us();
}

bool SimulatedDevice::take_for_driver(std::size_t bytes) {
  const Lock lock(impl_->mutex);
  return impl_->memory.take_for_driver(bytes);
}

void SimulatedDevice::give_back_for_driver(std::size_t bytes) {
  const Lock lock(impl_->mutex);
  impl_->memory.give_back_for_driver(bytes);
}

std::size_t SimulatedDevice::driver_bytes() const {
  const Lock lock(impl_->mutex);
  return impl_->memory.driver_bytes();
}

std::size_t SimulatedDevice::peak_with_driver_bytes() const {
  const Lock lock(impl_->mutex);
  return impl_->memory.peak_with_driver_bytes();
}

std::size_t SimulatedDevice::used_bytes() const {
  const Lock lock(impl_->mutex);
  return impl_->memory.used_bytes();
}

std::size_t SimulatedDevice::peak_used_bytes() const {
  const Lock lock(impl_->mutex);
  return impl_->memory.peak_used_bytes();
}

std::size_t SimulatedDevice::free_bytes() const {
  const Lock lock(impl_->mutex);
  return impl_->memory.free_bytes();
}

std::size_t SimulatedDevice::live_mappings() const {
  const Lock lock(impl_->mutex);
  return impl_->memory.live_mappings();
}

std::optional<MemoryAt> SimulatedDevice::memory_at(Address address) const {
  const Lock lock(impl_->mutex);
  return impl_->memory.memory_at(address);
}

std::vector<LoggedCall> SimulatedDevice::take_log() {
  const Lock lock(impl_->mutex);
  return impl_->book.take_log();
}

void SimulatedDevice::set_faults(const std::vector<Fault>& faults) {
  const Lock lock(impl_->mutex);
  impl_->book.set_faults(faults);
}

std::uint64_t SimulatedDevice::faults_injected() const {
  const Lock lock(impl_->mutex);
  return impl_->book.faults_injected();
}

CACHALOT_END
