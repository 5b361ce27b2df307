// The names of the device's calls: ours, and those of the CUDA driver's functions behind them.
#include <algorithm>
#include <array>
#include <cstddef>

#include "cachalot/simulated_device.h"
#include "device/call_book.h"

CACHALOT_BEGIN

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

CACHALOT_END
