#include "device/call_book.h"

#include <cmath>
#include <utility>

#include "base/bytes.h"
#include "device/cuda_codes.h"

namespace cachalot {

const char* cuda_name(DeviceCall call) {
  switch (call) {
    case DeviceCall::malloc:
      return "cuMemAlloc";
    case DeviceCall::free:
      return "cuMemFree";
    case DeviceCall::reserve:
      return "cuMemAddressReserve";
    case DeviceCall::unreserve:
      return "cuMemAddressFree";
    case DeviceCall::create:
      return "cuMemCreate";
    case DeviceCall::release:
      return "cuMemRelease";
    case DeviceCall::map:
      return "cuMemMap";
    case DeviceCall::unmap:
      return "cuMemUnmap";
    case DeviceCall::set_access:
      return "cuMemSetAccess";
    case DeviceCall::host_malloc:
      return "cuMemHostAlloc";
    case DeviceCall::host_free:
      return "cuMemFreeHost";
    case DeviceCall::copy_to_host:
      return "cuMemcpyDtoH";
    case DeviceCall::copy_from_host:
      return "cuMemcpyHtoD";
    case DeviceCall::fill:
      return "cuMemsetD8Async";
    case DeviceCall::event_create:
      return "cuEventCreate";
    case DeviceCall::event_destroy:
      return "cuEventDestroy";
    case DeviceCall::event_record:
      return "cuEventRecord";
    case DeviceCall::event_query:
      return "cuEventQuery";
    case DeviceCall::event_synchronize:
      return "cuEventSynchronize";
    case DeviceCall::stream_wait:
      return "cuStreamWaitEvent";
    case DeviceCall::capture_status:
      return "cuStreamGetCaptureInfo";
    case DeviceCall::synchronize:
      return "cuCtxSynchronize";
    case DeviceCall::memory_info:
      return "cuMemGetInfo";
    case DeviceCall::ipc_export:
      return "cuIpcGetMemHandle";
    case DeviceCall::ipc_import:
      return "cuIpcOpenMemHandle";
    case DeviceCall::ipc_close:
      return "cuIpcCloseMemHandle";
    case DeviceCall::export_handle:
      return "cuMemExportToShareableHandle";
    case DeviceCall::import_handle:
      return "cuMemImportFromShareableHandle";
    case DeviceCall::enable_peer_access:
      return "cuCtxEnablePeerAccess";
    case DeviceCall::kCount:
      break;
  }
  return "?";
}

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

}  // namespace cachalot
