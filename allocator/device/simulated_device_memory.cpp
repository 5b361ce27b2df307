// The simulated device's memory: calls that allocate, map, copy and share it.
#include "base/format.h"
#include "cachalot/simulated_device.h"
#include "device/cuda_codes.h"
#include "device/ipc_registry.h"
#include "device/simulated_device_state.h"

CACHALOT_BEGIN

// Memory.

std::optional<Address> SimulatedDevice::malloc(std::size_t bytes) {
  const Lock lock(impl_->mutex);
  if (impl_->book.begin(DeviceCall::malloc, 0, bytes) == Impl::Outcome::out_of_memory) return std::nullopt;
  const auto address = impl_->memory.malloc(bytes);
  if (address) impl_->book.succeeded(*address);
  return address;
}

// A pool that has no memory waits for what is being freed.
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
  impl_->memory.set_access(address, bytes, peers);
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

CACHALOT_END
