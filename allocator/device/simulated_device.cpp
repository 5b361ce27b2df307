#include "cachalot/simulated_device.h"

#include <map>
#include <set>
#include <utility>

#include "base/check.h"
#include "base/format.h"
#include "base/mutex.h"
#include "device/call_book.h"
#include "device/cuda_codes.h"
#include "device/hazard_checker.h"
#include "device/ipc_registry.h"
#include "device/simulated_content.h"
#include "device/simulated_memory.h"
#include "device/simulated_streams.h"

namespace cachalot {

// The state behind the mutex. Each call of SimulatedDevice: lock, begin in the book, check, do, succeed.
class SimulatedDevice::Impl {
 public:
  using Outcome = CallBook::Outcome;

  explicit Impl(const Config& settings)
      : config(settings),
        book(settings.latency, settings.log_calls),
        memory(settings.memory_bytes),
        streams(settings.captures_refuse, settings.completion_hints) {
    if (settings.check_hazards) checker = std::make_unique<HazardChecker>();
  }
  ~Impl() { withdraw_exports(exporter); }
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  // Begins a call of the virtual-memory family.
  Outcome begin_virtual(DeviceCall call, std::uint64_t argument, std::uint64_t bytes = 0) CACHALOT_REQUIRES(mutex) {
    const Outcome outcome = book.begin(call, argument, bytes);
    if (!config.virtual_memory) fail(cuda_name(call), CudaCode::not_supported, "no virtual memory management");
    return outcome;
  }

  void wait_for_all_work() CACHALOT_REQUIRES(mutex) {
    book.wait_until(streams.all_ready_ns());
    if (checker) checker->host_saw_everything();
  }

  // The stream that the call works on, behind those that it waits for implicitly.
  SimulatedStream& stream_in_order(const char* call, Stream name) CACHALOT_REQUIRES(mutex) {
    HazardChecker* const order = checker.get();
    SimulatedStream& stream = streams.stream_in_order(call, name, [&](Stream before) {
      if (order) order->joined(name, before);
    });
    if (order && name == nullptr) order->joined_destroyed(name);
    return stream;
  }

  // Mapping may wait for the device, but nothing promises it: the checker does not count on it.
  void wait_for_mapping() CACHALOT_REQUIRES(mutex) {
    if (config.mapping_waits) book.wait_until(streams.all_ready_ns());
  }

  // What the host learns when it finds this event done.
  void saw(const SimulatedEvent& event) CACHALOT_REQUIRES(mutex) {
    if (checker) checker->host_saw(event.after);
  }

  void forget_freed_memory() CACHALOT_REQUIRES(mutex) {
    for (const auto& freed : memory.freed()) {
      content.forget(freed.first, freed.bytes);
      if (checker) checker->forget(freed.first, freed.bytes);
      if (config.memory_freed) config.memory_freed(freed.first, freed.bytes);
    }
    memory.forget_freed();
  }

  void free(Address address, bool waits) CACHALOT_REQUIRES(mutex) {
    constexpr auto kCall = "cuMemFree";
    book.begin(DeviceCall::free, address);
    const std::size_t bytes = memory.allocation_bytes(kCall, address);
    if (checker) checker->check_no_handout("free", address, bytes);
    if (waits) {
      streams.refuse_while_capturing(kCall);
      wait_for_all_work();
    }
    memory.free(address);
    forget_freed_memory();
    if (has_exported) withdraw_export(exporter, address);
    book.succeeded();
  }

  // Where the range is; empty if a byte of it is not accessible.
  const std::vector<MemoryPiece>& locate(Address address, std::size_t bytes) CACHALOT_REQUIRES(mutex) {
    pieces.clear();
    if (!memory.locate(address, bytes, pieces)) pieces.clear();
    return pieces;
  }

  // Begins a copy, which waits for nothing; where its device memory is.
  const std::vector<MemoryPiece>& begin_copy(DeviceCall call, Address address, std::size_t bytes)
      CACHALOT_REQUIRES(mutex) {
    book.begin(call, address, bytes);
    streams.refuse_while_capturing(cuda_name(call));
    if (bytes != 0 && !locate(address, bytes).empty()) return pieces;
    fail(cuda_name(call), CudaCode::invalid_value, formatted("[{:#x}, +{}) is not accessible memory", address, bytes));
  }

  void require_accessible(const std::vector<AddressRange>& ranges) CACHALOT_REQUIRES(mutex) {
    for (const AddressRange& range : ranges) {
      if (range.bytes == 0 || !locate(range.address, range.bytes).empty()) continue;
      fail("cuLaunchKernel", CudaCode::illegal_address,
           formatted("[{:#x}, +{}) is not accessible memory", range.address, range.bytes));
    }
  }

  void note_uses(Stream stream, const std::vector<AddressRange>& ranges) CACHALOT_REQUIRES(mutex) {
    checker->launched(stream);
    for (const AddressRange& range : ranges) {
      for (const MemoryPiece& piece : locate(range.address, range.bytes)) checker->used(stream, piece);
    }
  }

  void wait_for_stream(SimulatedStream& stream) CACHALOT_REQUIRES(mutex) {
    book.wait_until(stream.ready_ns());
    if (checker) checker->host_saw_stream(stream.name());
  }

  // What the host does before a copy from pageable memory is queued: it puts a small one aside, or waits for the stream.
  void stage(SimulatedStream& stream, const HostCopy& copy) CACHALOT_REQUIRES(mutex) {
    if (copy.direction == CopyDirection::to_host) return;
    if (copy.bytes > config.copies.staged_bytes) return wait_for_stream(stream);
    book.advance(config.copies.bytes_ns(copy.bytes, false));
  }

  // And after: the bytes to the host must all be there; of those to the device the last may still be in the buffer.
  void wait_for_pageable(SimulatedStream& stream, const HostCopy& copy) CACHALOT_REQUIRES(mutex) {
    if (copy.direction == CopyDirection::to_host) return wait_for_stream(stream);
    if (copy.bytes <= config.copies.staged_bytes) return;
    book.wait_until(stream.ready_ns() - config.copies.bytes_ns(config.copies.staged_bytes, true));
  }

  // An imported export may be open several times; CUDA gives the same address each time.
  struct Import {
    ExportedMemory memory;
    std::size_t openings = 0;
  };
  std::map<Address, Import>::iterator find_import(const ExportedMemory& exported) CACHALOT_REQUIRES(mutex) {
    auto at = imports.begin();
    while (at != imports.end() &&
           (at->second.memory.exporter != exported.exporter || at->second.memory.address != exported.address)) {
      ++at;
    }
    return at;
  }

  const Config config;
  const std::uint64_t exporter = next_exporter();
  mutable Mutex mutex;
  CallBook book CACHALOT_GUARDED_BY(mutex);
  SimulatedMemory memory CACHALOT_GUARDED_BY(mutex);
  SimulatedContent content CACHALOT_GUARDED_BY(mutex);
  SimulatedHostMemory host_memory CACHALOT_GUARDED_BY(mutex);
  SimulatedStreams streams CACHALOT_GUARDED_BY(mutex);
  std::unique_ptr<HazardChecker> checker CACHALOT_GUARDED_BY(mutex);
  std::map<Address, Import> imports CACHALOT_GUARDED_BY(mutex);
  bool has_exported CACHALOT_GUARDED_BY(mutex) = false;
  std::set<int> peers CACHALOT_GUARDED_BY(mutex);
  std::vector<MemoryPiece> pieces CACHALOT_GUARDED_BY(mutex);  // kept, so that locate allocates nothing
};

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
          .rdma_capable = false,
          .shares_by_descriptor = config.virtual_memory};
}

MemoryInfo SimulatedDevice::memory_info() {
  const Lock lock(impl_->mutex);
  impl_->book.begin(DeviceCall::memory_info);
  impl_->book.succeeded();
  return {.free_bytes = impl_->memory.free_bytes(), .total_bytes = impl_->config.memory_bytes};
}

// Memory.

std::optional<Address> SimulatedDevice::malloc(std::size_t bytes) {
  const Lock lock(impl_->mutex);
  if (impl_->book.begin(DeviceCall::malloc, 0, bytes) == Impl::Outcome::out_of_memory) return std::nullopt;
  const auto address = impl_->memory.malloc(bytes);
  if (address) impl_->book.succeeded(*address);
  return address;
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
  impl_->memory.set_access(address, bytes, peers);
  impl_->book.succeeded();
}

void SimulatedDevice::reset() {
  const Lock lock(impl_->mutex);
  impl_->wait_for_all_work();
  impl_->memory.release_all();
  impl_->forget_freed_memory();
  impl_->streams.destroy_all();
  impl_->host_memory.give_back_all();
  impl_->imports.clear();
  impl_->peers.clear();
  withdraw_exports(impl_->exporter);
}

// Host memory.

void* SimulatedDevice::host_malloc(std::size_t bytes) {
  const Lock lock(impl_->mutex);
  if (impl_->book.begin(DeviceCall::host_malloc, 0, bytes) == Impl::Outcome::out_of_memory) return nullptr;
  if (bytes == 0) fail("cuMemHostAlloc", CudaCode::invalid_value, "a size of 0");
  void* const memory = impl_->host_memory.take(bytes);
  if (memory != nullptr) impl_->book.succeeded(reinterpret_cast<std::uintptr_t>(memory));
  return memory;
}

void SimulatedDevice::host_free(void* memory) {
  const Lock lock(impl_->mutex);
  impl_->book.begin(DeviceCall::host_free, reinterpret_cast<std::uintptr_t>(memory), impl_->host_memory.bytes(memory));
  if (!impl_->host_memory.give_back(memory))
    fail("cuMemFreeHost", CudaCode::invalid_value, "not an address that cuMemHostAlloc returned, or freed already");
  impl_->book.succeeded();
}

void SimulatedDevice::copy_to_host(void* to, Address from, std::size_t bytes) {
  const Lock lock(impl_->mutex);
  for (const MemoryPiece& piece : impl_->begin_copy(DeviceCall::copy_to_host, from, bytes)) {
    impl_->content.read(static_cast<std::byte*>(to) + (piece.address - from), piece.physical, piece.bytes);
  }
  impl_->book.succeeded();
}

void SimulatedDevice::copy_from_host(Address to, const void* from, std::size_t bytes) {
  const Lock lock(impl_->mutex);
  for (const MemoryPiece& piece : impl_->begin_copy(DeviceCall::copy_from_host, to, bytes)) {
    impl_->content.write(piece.physical, static_cast<const std::byte*>(from) + (piece.address - to), piece.bytes);
  }
  impl_->book.succeeded();
}

// It takes the stream no time, and what it writes is there at once: nobody may look before the stream is there.
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

void SimulatedDevice::retain(MemoryHandle handle) {
  const Lock lock(impl_->mutex);
  impl_->memory.retain(handle);
}

MemoryHandle SimulatedDevice::adopt(std::size_t bytes) {
  const Lock lock(impl_->mutex);
  return impl_->memory.adopt(bytes);
}

HandleInfo SimulatedDevice::handle_info(MemoryHandle handle) const {
  const Lock lock(impl_->mutex);
  return impl_->memory.handle_info(handle);
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

std::optional<std::uint64_t> SimulatedDevice::completion_hint(Stream stream) {
  if (!impl_->config.completion_hints) return std::nullopt;
  const Lock lock(impl_->mutex);
  return impl_->streams.even_dead(stream).completed_events(impl_->book.clock_ns());
}

std::uint64_t SimulatedDevice::stream_id(Stream stream) {
  const Lock lock(impl_->mutex);
  return impl_->streams.stream(stream).id();
}

void SimulatedDevice::stream_wait(Stream stream, Event event) {
  const Lock lock(impl_->mutex);
  impl_->book.begin(DeviceCall::stream_wait, reinterpret_cast<std::uintptr_t>(event));
  const SimulatedEvent& awaited = impl_->streams.event("cuStreamWaitEvent", event);
  const bool ordinary = impl_->streams.wait(impl_->stream_in_order("cuStreamWaitEvent", stream), awaited);
  if (ordinary && impl_->checker) impl_->checker->waited(stream, awaited.after);
  impl_->book.succeeded();
}

CaptureStatus SimulatedDevice::capture_status(Stream stream) {
  const Lock lock(impl_->mutex);
  impl_->book.begin(DeviceCall::capture_status, reinterpret_cast<std::uintptr_t>(stream));
  const SimulatedStream& asked = impl_->streams.stream(stream);
  impl_->streams.refuse_implicit_capture("cuStreamGetCaptureInfo", asked, false);
  const std::uint64_t id = asked.capture();
  impl_->book.succeeded();
  return {.capturing = id != 0, .id = id};
}

void SimulatedDevice::synchronize() {
  const Lock lock(impl_->mutex);
  impl_->book.begin(DeviceCall::synchronize);
  impl_->streams.refuse_while_capturing("cuCtxSynchronize");
  impl_->wait_for_all_work();
  impl_->book.succeeded();
}

// Sharing.

IpcHandle SimulatedDevice::ipc_export(Address address) {
  const Lock lock(impl_->mutex);
  impl_->book.begin(DeviceCall::ipc_export, address);
  const std::size_t bytes = impl_->memory.allocation_bytes("cuIpcGetMemHandle", address);
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

bool SimulatedDevice::may_access(int peer) const {
  const Lock lock(impl_->mutex);
  return impl_->peers.contains(peer);
}

std::int64_t SimulatedDevice::clock_us() { return clock_ns() / 1000; }

// Work.

Stream SimulatedDevice::stream() {
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
  SimulatedStream& on = impl_->stream_in_order("cuMemcpyAsync", stream);
  const bool may_wait = !copy.pinned && on.capture() == 0;
  if (may_wait) impl_->stage(on, copy);
  const std::int64_t duration_ns = impl_->config.copies.engine_ns(copy);
  const bool queued = impl_->streams.copy(on, copy.direction, impl_->book.clock_ns(), duration_ns);
  if (queued && impl_->checker) impl_->note_uses(stream, ranges);
  if (may_wait) impl_->wait_for_pageable(on, copy);
  return on.ready_ns();
}

void SimulatedDevice::set_blocking(Stream stream) {
  const Lock lock(impl_->mutex);
  impl_->streams.set_blocking(stream);
}

void SimulatedDevice::stream_destroy(Stream stream) {
  const Lock lock(impl_->mutex);
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

void SimulatedDevice::advance(std::int64_t ns) {
  CACHALOT_REQUIRE(ns >= 0, "advance by {} ns: time does not run backwards", ns);
  const Lock lock(impl_->mutex);
  impl_->book.advance(ns);
}

void SimulatedDevice::advance_to(std::int64_t clock_ns) {
  const Lock lock(impl_->mutex);
  impl_->book.wait_until(clock_ns);
}

std::int64_t SimulatedDevice::clock_ns() const {
  const Lock lock(impl_->mutex);
  return impl_->book.clock_ns();
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
  const Lock lock(impl_->mutex);
  impl_->streams.refuse_in_any_mode(call);
}

void SimulatedDevice::spoil_capture(Stream stream) {
  const Lock lock(impl_->mutex);
  impl_->streams.spoil_capture_of(impl_->streams.stream(stream));
}

bool SimulatedDevice::is_capture_spoilt(Stream stream) const {
  const Lock lock(impl_->mutex);
  return impl_->streams.is_spoilt(impl_->streams.stream(stream));
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

std::size_t SimulatedDevice::used_bytes() const {
  const Lock lock(impl_->mutex);
  return impl_->memory.used_bytes();
}

std::size_t SimulatedDevice::peak_used_bytes() const {
  const Lock lock(impl_->mutex);
  return impl_->memory.peak_used_bytes();
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

}  // namespace cachalot
