#include "cachalot/simulated_device.h"

#include <algorithm>

#include "base/check.h"
#include "base/format.h"
#include "device/addresses.h"
#include "device/cuda_codes.h"
#include "device/known_stream.h"
#include "simulator/device/ipc_registry.h"
#include "simulator/device/simulated_device_state.h"

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
          .managed_bytes = config.managed_memory ? config.memory_bytes + config.managed_host_bytes : 0,
          .rdma_capable = false,
          .shares_by_descriptor = config.virtual_memory};
}

MemoryInfo SimulatedDevice::memory_info() {
  const Lock lock(impl_->mutex);
  impl_->book.begin(DeviceCall::memory_info);
  impl_->book.succeeded();
  const std::size_t free_bytes = impl_->memory.free_bytes();
  if (impl_->config.refuses_sizing) impl_->memory.withhold(free_bytes / 2);
  return {.free_bytes = free_bytes, .total_bytes = impl_->config.memory_bytes};
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

std::int64_t SimulatedDevice::clock_ns() const { return impl_->locked(&CallBook::clock_ns); }

void SimulatedDevice::advance(std::int64_t ns) {
  CACHALOT_REQUIRE(ns >= 0, "advance by {} ns: time does not run backwards", ns);
  const Lock lock(impl_->mutex);
  impl_->book.advance(ns);
}

void SimulatedDevice::advance_to(std::int64_t clock_ns) { impl_->locked(&CallBook::wait_until, clock_ns); }

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

std::uint64_t SimulatedDevice::dead_stream_calls() const { return impl_->locked(&SimulatedStreams::dead_stream_calls); }
std::uint64_t SimulatedDevice::count(DeviceCall call) const { return impl_->locked(&CallBook::count, call); }
double SimulatedDevice::driver_us() const { return impl_->locked(&CallBook::driver_us); }

bool SimulatedDevice::take_for_driver(std::size_t bytes) {
  return impl_->locked(&SimulatedMemory::take_for_driver, bytes);
}

void SimulatedDevice::give_back_for_driver(std::size_t bytes) {
  impl_->locked(&SimulatedMemory::give_back_for_driver, bytes);
}

bool SimulatedDevice::take_managed(std::size_t bytes) { return impl_->locked(&SimulatedMemory::take_managed, bytes); }

void SimulatedDevice::give_managed_back(std::size_t bytes) {
  impl_->locked(&SimulatedMemory::give_managed_back, bytes);
}

ManagedMemory SimulatedDevice::managed() const { return impl_->locked(&SimulatedMemory::managed); }

std::size_t SimulatedDevice::driver_bytes() const { return impl_->locked(&SimulatedMemory::driver_bytes); }

std::size_t SimulatedDevice::peak_with_driver_bytes() const {
  return impl_->locked(&SimulatedMemory::peak_with_driver_bytes);
}

std::size_t SimulatedDevice::used_bytes() const { return impl_->locked(&SimulatedMemory::used_bytes); }
std::size_t SimulatedDevice::managed_host_bytes() const { return impl_->locked(&SimulatedMemory::host_bytes); }
std::size_t SimulatedDevice::peak_used_bytes() const { return impl_->locked(&SimulatedMemory::peak_used_bytes); }
std::size_t SimulatedDevice::free_bytes() const { return impl_->locked(&SimulatedMemory::free_bytes); }
std::size_t SimulatedDevice::live_mappings() const { return impl_->locked(&SimulatedMemory::live_mappings); }

std::optional<MemoryAt> SimulatedDevice::memory_at(Address address) const {
  return impl_->locked(&SimulatedMemory::memory_at, address);
}

std::vector<LoggedCall> SimulatedDevice::take_log() { return impl_->locked(&CallBook::take_log); }
void SimulatedDevice::set_faults(const std::vector<Fault>& faults) { impl_->locked(&CallBook::set_faults, faults); }
std::uint64_t SimulatedDevice::faults_injected() const { return impl_->locked(&CallBook::faults_injected); }

// Memory.

std::optional<Address> SimulatedDevice::malloc(std::size_t bytes) {
  const Lock lock(impl_->mutex);
  if (impl_->book.begin(DeviceCall::malloc, 0, bytes) == Impl::Outcome::out_of_memory) return std::nullopt;
  const auto address = impl_->memory.malloc(bytes);
  if (address) impl_->book.succeeded(*address);
  return address;
}

std::optional<Address> SimulatedDevice::malloc_managed(std::size_t bytes) {
  const Lock lock(impl_->mutex);
  if (impl_->book.begin(DeviceCall::malloc_managed, 0, bytes) == Impl::Outcome::out_of_memory) return std::nullopt;
  if (!impl_->config.managed_memory) fail("cuMemAllocManaged", CudaCode::not_supported, "no managed memory");
  const auto address = impl_->memory.malloc_managed(bytes);
  if (address) impl_->book.succeeded(*address);
  return address;
}

// A pool that has no memory waits for pending frees.
std::optional<Address> SimulatedDevice::malloc_async(std::size_t bytes, Stream stream) {
  const Lock lock(impl_->mutex);
  if (impl_->book.begin(DeviceCall::malloc_async, 0, bytes) == Impl::Outcome::out_of_memory) return std::nullopt;
  constexpr auto kCall = "cuMemAllocAsync";
  if (impl_->stream_in_order(kCall, stream).capture() != 0)
    fail(kCall, CudaCode::capture_unsupported, "the stream captures a graph");
  impl_->settle_async_frees(/*wait=*/false);
  auto address = impl_->memory.malloc(bytes);
  if (!address && !impl_->async_frees.empty()) {
    impl_->settle_async_frees(/*wait=*/true);
    address = impl_->memory.malloc(bytes);
  }
  if (address) impl_->book.succeeded(*address);
  return address;
}

void SimulatedDevice::free_async(Address address, Stream stream) {
  constexpr auto kCall = "cuMemFreeAsync";
  const Lock lock(impl_->mutex);
  impl_->book.begin(DeviceCall::free_async, address);
  const std::size_t bytes = impl_->memory.allocation_bytes(kCall, address);
  const SimulatedStream& behind = impl_->stream_in_order(kCall, stream);
  if (behind.capture() != 0) fail(kCall, CudaCode::capture_unsupported, "the stream captures a graph");
  if (impl_->checker) impl_->checker->check_no_handout("free_async", address, bytes);
  impl_->async_frees.push_back({address, behind.ready_ns()});
  impl_->settle_async_frees(/*wait=*/false);
  impl_->book.succeeded();
}

void SimulatedDevice::free(Address address) {
  const Lock lock(impl_->mutex);
  impl_->free(address, true);
}

void SimulatedDevice::free_without_waiting(Address address) {
  const Lock lock(impl_->mutex);
  impl_->free(address, false);
}

std::optional<Address> SimulatedDevice::reserve(std::size_t bytes) {
  const Lock lock(impl_->mutex);
  if (impl_->begin_virtual(DeviceCall::reserve, 0, bytes) == Impl::Outcome::out_of_memory) return std::nullopt;
  const auto address = impl_->memory.reserve(bytes);
  if (address) impl_->book.succeeded(*address);
  return address;
}

void SimulatedDevice::unreserve(Address address, std::size_t bytes) {
  const Lock lock(impl_->mutex);
  impl_->begin_virtual(DeviceCall::unreserve, address, bytes);
  impl_->memory.unreserve(address, bytes);
  impl_->book.succeeded();
}

std::optional<MemoryHandle> SimulatedDevice::create(std::size_t bytes) {
  const Lock lock(impl_->mutex);
  if (impl_->begin_virtual(DeviceCall::create, 0, bytes) == Impl::Outcome::out_of_memory) return std::nullopt;
  const auto handle = impl_->memory.create(bytes);
  if (handle) impl_->book.succeeded(*handle);
  return handle;
}

void SimulatedDevice::release(MemoryHandle handle) {
  const Lock lock(impl_->mutex);
  impl_->begin_virtual(DeviceCall::release, handle);
  impl_->memory.release(handle);
  impl_->forget_freed_memory();
  impl_->book.succeeded();
}

void SimulatedDevice::map(Address address, std::size_t bytes, MemoryHandle handle) {
  const Lock lock(impl_->mutex);
  impl_->begin_virtual(DeviceCall::map, address, bytes);
  impl_->wait_for_mapping();
  impl_->memory.map(address, bytes, handle);
  impl_->book.succeeded();
}

void SimulatedDevice::unmap(Address address, std::size_t bytes) {
  const Lock lock(impl_->mutex);
  impl_->begin_virtual(DeviceCall::unmap, address, bytes);
  if (impl_->checker) impl_->checker->check_unmap(impl_->memory.whole_mappings(address, bytes));
  impl_->wait_for_mapping();
  impl_->memory.unmap(address, bytes);
  impl_->forget_freed_memory();
  impl_->book.succeeded();
}

void SimulatedDevice::set_access(Address address, std::size_t bytes, const std::vector<int>& peers) {
  const Lock lock(impl_->mutex);
  impl_->begin_virtual(DeviceCall::set_access, address, bytes);
  impl_->wait_for_mapping();
  const std::size_t mappings = impl_->memory.set_access(address, bytes, peers);
  impl_->book.takes(impl_->config.latency.set_access_us_per_mapping * static_cast<double>(mappings));
  impl_->book.succeeded();
}

// Host memory.

void* SimulatedDevice::host_malloc(std::size_t bytes) {
  const Lock lock(impl_->mutex);
  if (impl_->book.begin(DeviceCall::host_malloc, 0, bytes) == Impl::Outcome::out_of_memory) return nullptr;
  if (bytes == 0) fail("cuMemHostAlloc", CudaCode::invalid_value, "a size of 0");
  void* const memory = impl_->host_memory.allocate(bytes);
  if (memory != nullptr) impl_->book.succeeded(reinterpret_cast<std::uintptr_t>(memory));
  return memory;
}

void SimulatedDevice::host_free(void* memory) {
  const Lock lock(impl_->mutex);
  impl_->book.begin(DeviceCall::host_free, reinterpret_cast<std::uintptr_t>(memory), impl_->host_memory.bytes(memory));
  if (!impl_->host_memory.free(memory))
    fail("cuMemFreeHost", CudaCode::invalid_value, "not an address that cuMemHostAlloc returned, or freed already");
  impl_->book.succeeded();
}

void SimulatedDevice::copy_to_host(void* to, Address from, std::size_t bytes) {
  const Lock lock(impl_->mutex);
  impl_->begin_copy(DeviceCall::copy_to_host, from, bytes);
  impl_->read_content(static_cast<std::byte*>(to), from, bytes);
  impl_->book.succeeded();
}

void SimulatedDevice::copy_from_host(Address to, const void* from, std::size_t bytes) {
  const Lock lock(impl_->mutex);
  impl_->begin_copy(DeviceCall::copy_from_host, to, bytes);
  impl_->write_content(to, static_cast<const std::byte*>(from), bytes);
  impl_->book.succeeded();
}

// Fills in no time of the stream, and writes at once: the content may not be read before the stream has reached this
// point.
void SimulatedDevice::fill(Address address, unsigned char value, std::size_t bytes, Stream stream) {
  const Lock lock(impl_->mutex);
  impl_->book.begin(DeviceCall::fill, address, bytes);
  if (bytes == 0 || impl_->locate(address, bytes).empty()) {
    fail("cuMemsetD8Async", CudaCode::invalid_value,
         formatted("[{:#x}, +{}) is not accessible memory", address, bytes));
  }
  SimulatedStream& on = impl_->stream_in_order("cuMemsetD8Async", stream);
  if (impl_->streams.launch(on, impl_->book.clock_ns(), 0)) {
    for (const MemoryPiece& piece : impl_->pieces) {
      impl_->content.fill(piece.physical, static_cast<std::byte>(value), piece.bytes);
    }
    if (impl_->checker) impl_->note_uses(stream, {{address, bytes}});
  }
  impl_->book.succeeded();
}

// Physical memory shared by its handle.

void SimulatedDevice::retain(MemoryHandle handle) { impl_->locked(&SimulatedMemory::retain, handle); }

MemoryHandle SimulatedDevice::adopt(std::size_t bytes) { return impl_->locked(&SimulatedMemory::adopt, bytes); }

HandleInfo SimulatedDevice::handle_info(MemoryHandle handle) const {
  return impl_->locked(&SimulatedMemory::handle_info, handle);
}

// Sharing.

IpcHandle SimulatedDevice::ipc_export(Address address) {
  const Lock lock(impl_->mutex);
  impl_->book.begin(DeviceCall::ipc_export, address);
  constexpr auto kCall = "cuIpcGetMemHandle";
  const std::size_t bytes = impl_->memory.allocation_bytes(kCall, address);
  if (impl_->memory.is_managed(address)) fail(kCall, CudaCode::invalid_value, "managed memory has no handle");
  const ExportedMemory memory{impl_->exporter, address, bytes};
  publish_export(memory);
  impl_->has_exported = true;
  impl_->book.succeeded();
  return to_ipc_handle(memory);
}

Address SimulatedDevice::ipc_import(const IpcHandle& handle) {
  constexpr auto kCall = "cuIpcOpenMemHandle";
  const Lock lock(impl_->mutex);
  impl_->book.begin(DeviceCall::ipc_import);
  const ExportedMemory memory = from_ipc_handle(handle);
  if (!is_exported(memory)) fail(kCall, CudaCode::invalid_value, "not a handle of live exported memory");
  if (memory.exporter == impl_->exporter)
    fail(kCall, CudaCode::device_uninitialized, "exported by this process itself");
  auto import = impl_->find_import(memory);
  if (import == impl_->imports.end()) {
    const auto address = impl_->memory.open_foreign(memory.bytes);
    if (!address) fail(kCall, CudaCode::unknown, "the process has used up the simulated addresses");
    import = impl_->imports.emplace(*address, Impl::Import{memory, 0}).first;
  }
  ++import->second.openings;
  impl_->book.succeeded(import->first);
  return import->first;
}

void SimulatedDevice::ipc_close(Address address) {
  const Lock lock(impl_->mutex);
  impl_->book.begin(DeviceCall::ipc_close, address);
  const auto import = impl_->imports.find(address);
  if (import == impl_->imports.end()) {
    fail("cuIpcCloseMemHandle", CudaCode::invalid_value,
         "not an address that cuIpcOpenMemHandle returned, or closed already");
  }
  if (--import->second.openings == 0) {
    impl_->memory.close_foreign(address);
    impl_->forget_freed_memory();
    impl_->imports.erase(import);
  }
  impl_->book.succeeded();
}

ShareableHandle SimulatedDevice::export_handle(MemoryHandle handle) {
  const Lock lock(impl_->mutex);
  impl_->begin_virtual(DeviceCall::export_handle, handle);
  const ShareableHandle shared =
      to_shareable_handle({impl_->exporter, handle, impl_->memory.handle_info(handle).bytes});
  impl_->book.succeeded();
  return shared;
}

MemoryHandle SimulatedDevice::import_handle(const ShareableHandle& shared) {
  const Lock lock(impl_->mutex);
  impl_->begin_virtual(DeviceCall::import_handle, 0);
  const ExportedMemory memory = from_shareable_handle(shared);
  const bool is_our_own = memory.exporter == impl_->exporter;
  if (is_our_own) impl_->memory.retain(memory.address);
  const MemoryHandle handle = is_our_own ? memory.address : impl_->memory.adopt(memory.bytes);
  impl_->book.succeeded(handle);
  return handle;
}

void SimulatedDevice::enable_peer_access(int peer) {
  const Lock lock(impl_->mutex);
  impl_->book.begin(DeviceCall::enable_peer_access, static_cast<std::uint64_t>(peer));
  if (peer < 0 || peer == impl_->config.index) {
    fail("cuCtxEnablePeerAccess", CudaCode::invalid_device, "not another device");
  }
  impl_->peers.insert(peer);
  impl_->book.succeeded();
}

void SimulatedDevice::plan_addresses(const std::vector<AddressRange>& mallocs) {
  const Lock lock(impl_->mutex);
  impl_->memory.plan_addresses(mallocs);
}

bool SimulatedDevice::may_access(int peer) const {
  const Lock lock(impl_->mutex);
  return impl_->peers.contains(peer);
}

// Events.

Event SimulatedDevice::event_create() {
  const Lock lock(impl_->mutex);
  impl_->book.begin(DeviceCall::event_create);
  const Event event = impl_->streams.create_event();
  impl_->book.succeeded(reinterpret_cast<std::uintptr_t>(event));
  return event;
}

void SimulatedDevice::event_destroy(Event event) {
  const Lock lock(impl_->mutex);
  impl_->book.begin(DeviceCall::event_destroy, reinterpret_cast<std::uintptr_t>(event));
  impl_->streams.destroy_event(event);
  impl_->book.succeeded();
}

void SimulatedDevice::event_record(Event event, Stream stream) {
  const Lock lock(impl_->mutex);
  impl_->book.begin(DeviceCall::event_record, reinterpret_cast<std::uintptr_t>(event));
  SimulatedEvent& recorded = impl_->streams.event("cuEventRecord", event);
  SimulatedStream& on = impl_->stream_in_order("cuEventRecord", stream);
  const bool ordinary = impl_->streams.record(recorded, on, impl_->book.clock_ns());
  if (ordinary && impl_->checker) impl_->checker->recorded(stream, recorded.after);
  impl_->book.succeeded();
}

bool SimulatedDevice::event_query(Event event) {
  constexpr auto kCall = "cuEventQuery";
  const Lock lock(impl_->mutex);
  impl_->book.begin(DeviceCall::event_query, reinterpret_cast<std::uintptr_t>(event));
  const SimulatedEvent& asked = impl_->streams.event(kCall, event);
  impl_->streams.refuse_captured(kCall, asked);
  const bool done = impl_->book.clock_ns() >= asked.done_ns;
  if (done) impl_->saw(asked);
  impl_->book.succeeded();
  return done;
}

void SimulatedDevice::event_synchronize(Event event) {
  constexpr auto kCall = "cuEventSynchronize";
  const Lock lock(impl_->mutex);
  impl_->book.begin(DeviceCall::event_synchronize, reinterpret_cast<std::uintptr_t>(event));
  const SimulatedEvent& awaited = impl_->streams.event(kCall, event);
  impl_->streams.refuse_captured(kCall, awaited);
  impl_->streams.refuse_while_capturing(kCall);
  impl_->book.wait_until(awaited.done_ns);
  impl_->saw(awaited);
  impl_->book.succeeded();
}

std::size_t SimulatedDevice::event_synchronize_any(const std::vector<Event>& events) {
  std::vector<std::int64_t> done_ns;
  {
    const Lock lock(impl_->mutex);
    for (Event event : events)
      done_ns.push_back(std::max(impl_->book.clock_ns(), impl_->streams.event("cuEventSynchronize", event).done_ns));
  }
  const auto first = static_cast<std::size_t>(std::ranges::min_element(done_ns) - done_ns.begin());
  event_synchronize(events[first]);
  return first;
}

// Streams.

std::uint64_t SimulatedDevice::stream_id(Stream stream) {
  const Lock lock(impl_->mutex);
  return impl_->streams.stream(stream).id();
}

std::optional<std::uint64_t> SimulatedDevice::completion_hint(Stream stream) {
  if (!impl_->config.completion_hints) return std::nullopt;
  const Lock lock(impl_->mutex);
  return impl_->streams.even_dead(stream).completed_events(impl_->book.clock_ns());
}

void SimulatedDevice::stream_wait(Stream stream, Event event) {
  const Lock lock(impl_->mutex);
  impl_->book.begin(DeviceCall::stream_wait, reinterpret_cast<std::uintptr_t>(event));
  const SimulatedEvent& awaited = impl_->streams.event("cuStreamWaitEvent", event);
  const bool ordinary = impl_->streams.wait(impl_->stream_in_order("cuStreamWaitEvent", stream), awaited);
  if (ordinary && impl_->checker) impl_->checker->waited(stream, awaited.after);
  impl_->book.succeeded();
}

void SimulatedDevice::synchronize() {
  const Lock lock(impl_->mutex);
  impl_->book.begin(DeviceCall::synchronize);
  impl_->streams.refuse_while_capturing("cuCtxSynchronize");
  impl_->wait_for_all_work();
  impl_->book.succeeded();
}

Stream SimulatedDevice::new_stream() {
  const Lock lock(impl_->mutex);
  return impl_->streams.create_stream();
}

void SimulatedDevice::stream_create(Stream name) {
  const Lock lock(impl_->mutex);
  impl_->streams.create_stream(name);
}

std::int64_t SimulatedDevice::launch(Stream stream, std::int64_t duration_ns, const std::vector<AddressRange>& ranges) {
  CACHALOT_REQUIRE(duration_ns >= 0, "work of {} ns: a duration is not negative", duration_ns);
  const Lock lock(impl_->mutex);
  impl_->require_accessible(ranges);
  SimulatedStream& on = impl_->stream_in_order("cuLaunchKernel", stream);
  const bool queued = impl_->streams.launch(on, impl_->book.clock_ns(), duration_ns);
  if (queued && impl_->checker) impl_->note_uses(stream, ranges);
  return on.ready_ns();
}

std::int64_t SimulatedDevice::launch_copy(Stream stream, const HostCopy& copy,
                                          const std::vector<AddressRange>& ranges) {
  const Lock lock(impl_->mutex);
  impl_->require_accessible(ranges);
  return impl_->queue_copy(impl_->stream_in_order("cuMemcpyAsync", stream), copy, ranges);
}

// Copies within the device take the stream no time, as fills do.
void SimulatedDevice::copy(CopyKind kind, Address to, Address from, std::size_t bytes, Stream stream) {
  constexpr auto kCall = "cuMemcpyAsync";
  const bool to_host = kind == CopyKind::to_host;
  const Address here = to_host ? from : to;
  const Lock lock(impl_->mutex);
  impl_->book.begin(DeviceCall::copy, here, bytes);
  std::vector<AddressRange> ranges = {{here, bytes}};
  if (kind == CopyKind::within_device) ranges.push_back({from, bytes});
  for (const AddressRange& range : ranges) {
    if (bytes != 0 && !impl_->locate(range.address, bytes).empty()) continue;
    fail(kCall, CudaCode::invalid_value, formatted("[{:#x}, +{}) is not accessible memory", range.address, bytes));
  }
  SimulatedStream& on = impl_->stream_in_order(kCall, stream);
  const bool captures = on.capture() != 0;
  if (kind == CopyKind::within_device) {
    const bool queued = impl_->streams.launch(on, impl_->book.clock_ns(), 0);
    if (queued && impl_->checker) impl_->note_uses(stream, ranges);
  } else {
    const auto* const host = as_pointer(to_host ? to : from);
    const auto direction = to_host ? CopyDirection::to_host : CopyDirection::to_device;
    impl_->queue_copy(on, {direction, bytes, impl_->host_memory.holds(host)}, ranges);
  }
  if (!captures) impl_->move_content(kind, to, from, bytes);
  impl_->book.succeeded();
}

bool SimulatedDevice::has_stream(Stream stream) { return impl_->locked(&SimulatedStreams::has, stream); }

void SimulatedDevice::set_blocking(Stream stream) { impl_->locked(&SimulatedStreams::set_blocking, stream); }

void SimulatedDevice::stream_destroy(Stream stream) {
  const Lock lock(impl_->mutex);
  if (is_legacy(stream) || is_per_thread(stream)) {
    fail("cuStreamDestroy", CudaCode::invalid_resource_handle, "it is a stream that CUDA names for each device");
  }
  const bool was_blocking = impl_->streams.stream(stream).is_blocking();
  impl_->streams.destroy_stream(stream);
  if (impl_->checker) impl_->checker->destroyed(stream, was_blocking);
}

void SimulatedDevice::stream_synchronize(Stream stream) {
  const Lock lock(impl_->mutex);
  impl_->streams.refuse_while_capturing("cuStreamSynchronize");
  impl_->wait_for_stream(impl_->stream_in_order("cuStreamSynchronize", stream));
}

bool SimulatedDevice::stream_query(Stream stream) {
  const Lock lock(impl_->mutex);
  impl_->streams.refuse_while_capturing("cuStreamQuery");
  const bool done = impl_->book.clock_ns() >= impl_->stream_in_order("cuStreamQuery", stream).ready_ns();
  if (done && impl_->checker) impl_->checker->host_saw_stream(stream);
  return done;
}

std::int64_t SimulatedDevice::stream_ready_ns(Stream stream) {
  const Lock lock(impl_->mutex);
  return impl_->streams.stream(stream).ready_ns();
}

std::int64_t SimulatedDevice::event_done_ns(Event event) {
  const Lock lock(impl_->mutex);
  return impl_->streams.event("cuEventElapsedTime", event).done_ns;
}

void SimulatedDevice::stream_wait_until(Stream stream, std::int64_t ns) {
  const Lock lock(impl_->mutex);
  impl_->streams.wait_until(impl_->stream_in_order("cuStreamWaitEvent", stream), ns);
}

// Captures.

CaptureStatus SimulatedDevice::capture_status(Stream stream) {
  const Lock lock(impl_->mutex);
  impl_->book.begin(DeviceCall::capture_status, reinterpret_cast<std::uintptr_t>(stream));
  const SimulatedStream& asked = impl_->streams.stream(stream);
  impl_->streams.refuse_implicit_capture("cuStreamGetCaptureInfo", asked, false);
  const std::uint64_t id = asked.capture();
  impl_->book.succeeded();
  return {.capturing = id != 0, .id = id};
}

std::uint64_t SimulatedDevice::begin_capture(Stream stream) {
  const Lock lock(impl_->mutex);
  return impl_->streams.begin_capture(impl_->streams.stream(stream));
}

void SimulatedDevice::end_capture(Stream stream) {
  const Lock lock(impl_->mutex);
  impl_->streams.end_capture(impl_->streams.stream(stream));
}

void SimulatedDevice::refuse_while_capturing(const char* call) {
  impl_->locked(&SimulatedStreams::refuse_in_any_mode, call);
}

void SimulatedDevice::spoil_capture(Stream stream) {
  const Lock lock(impl_->mutex);
  impl_->streams.spoil_capture_of(impl_->streams.stream(stream));
}

bool SimulatedDevice::is_capture_spoilt(Stream stream) const {
  const Lock lock(impl_->mutex);
  return impl_->streams.is_spoilt(impl_->streams.stream(stream));
}

CACHALOT_END
