#include "simulator/device/simulated_device_state.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/bytes.h"
#include "base/format.h"
#include "device/addresses.h"
#include "device/cuda_codes.h"

CACHALOT_BEGIN

// The names of the device's calls: ours, and those of the CUDA driver's functions behind them.

namespace {

struct Names {
  DeviceCall call;
  const char* ours;
  const char* cudas;
};

constexpr std::array kNames = std::to_array<Names>({
    {DeviceCall::malloc, "malloc", "cuMemAlloc"},
    {DeviceCall::free, "free", "cuMemFree"},
    {DeviceCall::reserve, "reserve", "cuMemAddressReserve"},
    {DeviceCall::unreserve, "unreserve", "cuMemAddressFree"},
    {DeviceCall::create, "create", "cuMemCreate"},
    {DeviceCall::release, "release", "cuMemRelease"},
    {DeviceCall::map, "map", "cuMemMap"},
    {DeviceCall::unmap, "unmap", "cuMemUnmap"},
    {DeviceCall::set_access, "set_access", "cuMemSetAccess"},
    {DeviceCall::host_malloc, "host_malloc", "cuMemHostAlloc"},
    {DeviceCall::host_free, "host_free", "cuMemFreeHost"},
    {DeviceCall::copy_to_host, "copy_to_host", "cuMemcpyDtoH"},
    {DeviceCall::copy_from_host, "copy_from_host", "cuMemcpyHtoD"},
    {DeviceCall::fill, "fill", "cuMemsetD8Async"},
    {DeviceCall::event_create, "event_create", "cuEventCreate"},
    {DeviceCall::event_destroy, "event_destroy", "cuEventDestroy"},
    {DeviceCall::event_record, "event_record", "cuEventRecord"},
    {DeviceCall::event_query, "event_query", "cuEventQuery"},
    {DeviceCall::event_synchronize, "event_synchronize", "cuEventSynchronize"},
    {DeviceCall::stream_wait, "stream_wait", "cuStreamWaitEvent"},
    {DeviceCall::capture_status, "capture_status", "cuStreamGetCaptureInfo"},
    {DeviceCall::synchronize, "synchronize", "cuCtxSynchronize"},
    {DeviceCall::memory_info, "memory_info", "cuMemGetInfo"},
    {DeviceCall::ipc_export, "ipc_export", "cuIpcGetMemHandle"},
    {DeviceCall::ipc_import, "ipc_import", "cuIpcOpenMemHandle"},
    {DeviceCall::ipc_close, "ipc_close", "cuIpcCloseMemHandle"},
    {DeviceCall::export_handle, "export_handle", "cuMemExportToShareableHandle"},
    {DeviceCall::import_handle, "import_handle", "cuMemImportFromShareableHandle"},
    {DeviceCall::enable_peer_access, "enable_peer_access", "cuCtxEnablePeerAccess"},
    {DeviceCall::malloc_async, "malloc_async", "cuMemAllocAsync"},
    {DeviceCall::free_async, "free_async", "cuMemFreeAsync"},
    {DeviceCall::copy, "copy", "cuMemcpyAsync"},
    {DeviceCall::malloc_managed, "malloc_managed", "cuMemAllocManaged"},
});

constexpr bool each_is_at_its_place() {
  for (std::size_t i = 0; i < kNames.size(); ++i) {
    if (kNames[i].call != static_cast<DeviceCall>(i)) return false;
  }
  return true;
}
static_assert(kNames.size() == kDeviceCallCount && each_is_at_its_place());

const Names& names_of(DeviceCall call) {
  static constexpr Names kUnknown{DeviceCall::kCount, "?", "?"};
  const auto i = static_cast<std::size_t>(call);
  return i < kNames.size() ? kNames[i] : kUnknown;
}

}  // namespace

const char* to_string(DeviceCall call) { return names_of(call).ours; }

const char* cuda_name(DeviceCall call) { return names_of(call).cudas; }

CallBook::CallBook(const LatencyModel& latency, bool log_calls) : log_calls_(log_calls) {
  for (std::size_t i = 0; i < kDeviceCallCount; ++i) {
    call_ns_[i] = std::llround(latency.call_us[i] * 1000);
    ns_per_byte_[i] = latency.call_us_per_mib[i] * 1000 / static_cast<double>(kMiB);
  }
}

std::int64_t CallBook::size_ns(std::size_t kind, std::uint64_t bytes) const {
  constexpr double kLongestNs = 1e12;  // an absurd size, about to be refused, must not overflow the clock
  return static_cast<std::int64_t>(std::fmin(ns_per_byte_[kind] * static_cast<double>(bytes) + 0.5, kLongestNs));
}

std::vector<LoggedCall> CallBook::take_log() { return std::exchange(log_, {}); }

void CallBook::set_faults(std::span<const Fault> faults) {
  faults_.clear();
  for (const Fault& fault : faults) faults_.push_back({fault});
}

bool CallBook::PlannedFault::strikes(DeviceCall call) {
  if (fault.call && *fault.call != call) return false;
  ++seen;
  return fault.repeat ? seen >= fault.nth : seen == fault.nth;
}

CallBook::Outcome CallBook::injected(DeviceCall call) {
  const Fault* struck = nullptr;
  for (PlannedFault& planned : faults_) {
    if (planned.strikes(call) && !struck) struck = &planned.fault;
  }
  if (!struck) return Outcome::proceed;
  ++faults_injected_;
  const bool may_lack_memory = call == DeviceCall::malloc || call == DeviceCall::malloc_managed ||
                               call == DeviceCall::malloc_async || call == DeviceCall::create ||
                               call == DeviceCall::reserve || call == DeviceCall::host_malloc;
  if (struck->out_of_memory && may_lack_memory) return Outcome::out_of_memory;
  const int code = struck->out_of_memory ? static_cast<int>(CudaCode::memory_allocation) : struck->code;
  throw CudaError(cuda_name(call), code, cuda_code_name(code));
}

SimulatedDevice::Impl::Impl(const Config& settings)
    : config(settings),
      book(settings.latency, settings.log_calls),
      memory(settings.memory_bytes, settings.managed_host_bytes, settings.account),
      streams(settings.captures_refuse, settings.completion_hints) {
  if (settings.check_hazards) checker = std::make_unique<HazardChecker>();
}

SimulatedDevice::Impl::Outcome SimulatedDevice::Impl::begin_virtual(DeviceCall call, std::uint64_t argument,
                                                                    std::uint64_t bytes) {
  const Outcome outcome = book.begin(call, argument, bytes);
  if (!config.virtual_memory) fail(cuda_name(call), CudaCode::not_supported, "no virtual memory management");
  return outcome;
}

void SimulatedDevice::Impl::wait_for_all_work() {
  book.wait_until(streams.all_ready_ns());
  if (checker) checker->host_saw_everything();
  settle_async_frees(/*wait=*/false);
}

SimulatedStream& SimulatedDevice::Impl::stream_in_order(const char* call, Stream name) {
  HazardChecker* const order = checker.get();
  SimulatedStream& stream = streams.stream_in_order(call, name, [&](Stream before) {
    if (order) order->joined(name, before);
  });
  if (order && name == nullptr) order->joined_destroyed(name);
  return stream;
}

void SimulatedDevice::Impl::wait_for_mapping() {
  if (config.mapping_waits) book.wait_until(streams.all_ready_ns());
}

void SimulatedDevice::Impl::saw(const SimulatedEvent& event) {
  if (checker) checker->host_saw(event.after);
}

void SimulatedDevice::Impl::forget_freed_memory() {
  for (const auto& freed : memory.freed()) {
    content.forget(freed.first, freed.bytes);
    if (checker) checker->forget(freed.first, freed.bytes);
    if (config.memory_freed) config.memory_freed(freed.first, freed.bytes);
  }
  memory.forget_freed();
}

void SimulatedDevice::Impl::free(Address address, bool waits) {
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

void SimulatedDevice::Impl::settle_async_frees(bool wait) {
  for (const AsyncFree& freed : async_frees) {
    if (wait) book.wait_until(freed.ready_ns);
  }
  const std::int64_t now = book.clock_ns();
  const auto is_ready = [&](const AsyncFree& freed) { return freed.ready_ns <= now; };
  for (const AsyncFree& freed : async_frees) {
    if (is_ready(freed)) memory.free(freed.address);
  }
  std::erase_if(async_frees, is_ready);
  forget_freed_memory();
}

const std::vector<MemoryPiece>& SimulatedDevice::Impl::locate(Address address, std::size_t bytes) {
  pieces.clear();
  if (!memory.locate(address, bytes, pieces)) pieces.clear();
  return pieces;
}

void SimulatedDevice::Impl::begin_copy(DeviceCall call, Address address, std::size_t bytes) {
  book.begin(call, address, bytes);
  streams.refuse_while_capturing(cuda_name(call));
  if (bytes != 0 && !locate(address, bytes).empty()) return;
  fail(cuda_name(call), CudaCode::invalid_value, formatted("[{:#x}, +{}) is not accessible memory", address, bytes));
}

void SimulatedDevice::Impl::require_accessible(const std::vector<AddressRange>& ranges) {
  for (const AddressRange& range : ranges) {
    if (range.bytes == 0 || !locate(range.address, range.bytes).empty()) continue;
    fail("cuLaunchKernel", CudaCode::illegal_address,
         formatted("[{:#x}, +{}) is not accessible memory", range.address, range.bytes));
  }
}

void SimulatedDevice::Impl::note_uses(Stream stream, const std::vector<AddressRange>& ranges) {
  checker->launched(stream);
  for (const AddressRange& range : ranges) {
    for (const MemoryPiece& piece : locate(range.address, range.bytes)) checker->used(stream, piece);
  }
}

void SimulatedDevice::Impl::wait_for_stream(SimulatedStream& stream) {
  book.wait_until(stream.ready_ns());
  if (checker) checker->host_saw_stream(stream.name());
}

std::int64_t SimulatedDevice::Impl::queue_copy(SimulatedStream& stream, const HostCopy& copy,
                                               const std::vector<AddressRange>& ranges) {
  const bool may_wait = !copy.pinned && stream.capture() == 0;
  if (may_wait) stage(stream, copy);
  const bool queued = streams.copy(stream, copy.direction, book.clock_ns(), config.copies.engine_ns(copy));
  if (queued && checker) note_uses(stream.name(), ranges);
  if (may_wait) wait_for_pageable(stream, copy);
  return stream.ready_ns();
}

void SimulatedDevice::Impl::read_content(std::byte* to, Address from, std::size_t bytes) {
  for (const MemoryPiece& piece : locate(from, bytes)) {
    content.read(to + (piece.address - from), piece.physical, piece.bytes);
  }
}

void SimulatedDevice::Impl::write_content(Address to, const std::byte* from, std::size_t bytes) {
  for (const MemoryPiece& piece : locate(to, bytes)) {
    content.write(piece.physical, from + (piece.address - to), piece.bytes);
  }
}

void SimulatedDevice::Impl::move_content(CopyKind kind, Address to, Address from, std::size_t bytes) {
  if (kind == CopyKind::from_host) return write_content(to, static_cast<const std::byte*>(as_pointer(from)), bytes);
  if (kind == CopyKind::to_host) return read_content(static_cast<std::byte*>(as_pointer(to)), from, bytes);
  std::vector<std::byte> part(std::min(bytes, kPhysicalUnit));
  for (std::size_t done = 0; done < bytes; done += part.size()) {
    part.resize(std::min(part.size(), bytes - done));
    read_content(part.data(), from + done, part.size());
    write_content(to + done, part.data(), part.size());
  }
}

void SimulatedDevice::Impl::stage(SimulatedStream& stream, const HostCopy& copy) {
  if (copy.direction == CopyDirection::to_host) return;
  if (copy.bytes > config.copies.staged_bytes) return wait_for_stream(stream);
  book.advance(config.copies.bytes_ns(copy.bytes, false));
}

void SimulatedDevice::Impl::wait_for_pageable(SimulatedStream& stream, const HostCopy& copy) {
  if (copy.direction == CopyDirection::to_host) return wait_for_stream(stream);
  if (copy.bytes <= config.copies.staged_bytes) return;
  book.wait_until(stream.ready_ns() - config.copies.bytes_ns(config.copies.staged_bytes, true));
}

std::map<Address, SimulatedDevice::Impl::Import>::iterator SimulatedDevice::Impl::find_import(
    const ExportedMemory& exported) {
  auto at = imports.begin();
  while (at != imports.end() &&
         (at->second.memory.exporter != exported.exporter || at->second.memory.address != exported.address)) {
    ++at;
  }
  return at;
}

CACHALOT_END
