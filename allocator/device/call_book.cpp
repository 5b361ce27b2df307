#include "device/call_book.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/bytes.h"
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
  const bool may_lack_memory = call == DeviceCall::malloc || call == DeviceCall::create ||
                               call == DeviceCall::reserve || call == DeviceCall::host_malloc;
  if (struck->out_of_memory && may_lack_memory) return Outcome::out_of_memory;
  const int code = struck->out_of_memory ? static_cast<int>(CudaCode::memory_allocation) : struck->code;
  throw CudaError(cuda_name(call), code, cuda_code_name(code));
}

CACHALOT_END
