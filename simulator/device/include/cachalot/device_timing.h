/// @file
/// The kinds of calls of a device, and models of the time that calls and copies take.
#pragma once

#include "cachalot/require_cpp17.h"

#include <array>
#include <cstddef>
#include <cstdint>

CACHALOT_BEGIN_API

/// The kinds of calls of a device, for latencies, counts, faults and the log. Each is named after
/// the method of Device that makes the call.
enum class DeviceCall : std::uint8_t {
  malloc,              ///< Device::malloc
  free,                ///< Device::free
  reserve,             ///< Device::reserve
  unreserve,           ///< Device::unreserve
  create,              ///< Device::create
  release,             ///< Device::release
  map,                 ///< Device::map
  unmap,               ///< Device::unmap
  set_access,          ///< Device::set_access
  host_malloc,         ///< Device::host_malloc
  host_free,           ///< Device::host_free
  copy_to_host,        ///< Device::copy_to_host
  copy_from_host,      ///< Device::copy_from_host
  fill,                ///< Device::fill
  event_create,        ///< Device::event_create
  event_destroy,       ///< Device::event_destroy
  event_record,        ///< Device::event_record
  event_query,         ///< Device::event_query
  event_synchronize,   ///< Device::event_synchronize
  stream_wait,         ///< Device::stream_wait
  capture_status,      ///< Device::capture_status
  synchronize,         ///< Device::synchronize
  memory_info,         ///< Device::memory_info
  ipc_export,          ///< Device::ipc_export
  ipc_import,          ///< Device::ipc_import
  ipc_close,           ///< Device::ipc_close
  export_handle,       ///< Device::export_handle
  import_handle,       ///< Device::import_handle
  enable_peer_access,  ///< Device::enable_peer_access
  malloc_async,        ///< Device::malloc_async
  free_async,          ///< Device::free_async
  copy,                ///< Device::copy
  kCount,              ///< the number of kinds
};
/// The number of kinds of calls.
inline constexpr std::size_t kDeviceCallCount = static_cast<std::size_t>(DeviceCall::kCount);
/// Returns the name of the kind: "malloc", "set_access", ...
const char* to_string(DeviceCall call);

/// A LatencyModel says how long the host is busy with each call.
struct LatencyModel {
  std::array<double, kDeviceCallCount> call_us{};          ///< microseconds per call
  std::array<double, kDeviceCallCount> call_us_per_mib{};  ///< further microseconds per MiB
  /// Returns the microseconds per call of a kind.
  double operator[](DeviceCall call) const { return call_us[static_cast<std::size_t>(call)]; }
  /// Returns the further microseconds per MiB of a kind.
  double per_mib(DeviceCall call) const { return call_us_per_mib[static_cast<std::size_t>(call)]; }

  /// Returns the default: published or reported figures. device_timing.cpp names the sources.
  static LatencyModel published();
  /// Returns a model in which every call takes no time.
  static LatencyModel none();
};

/// The direction of a copy over the bus.
enum class CopyDirection : std::uint8_t {
  to_device,  ///< from the host to the device
  to_host,    ///< from the device to the host
};

/// A HostCopy is a copy between host and device, over the bus.
struct HostCopy {
  CopyDirection direction = CopyDirection::to_device;  ///< where the bytes go
  std::size_t bytes = 0;                               ///< their number
  bool pinned = false;                                 ///< set if the host's memory is pinned
};

/// A CopyModel says how long copies over the bus take that are queued on streams. The device
/// reaches pinned memory by itself. The host copies pageable memory through a pinned buffer of the
/// driver, and waits meanwhile.
struct CopyModel {
  double setup_us = 0;             ///< microseconds of each copy on its engine
  double pinned_us_per_mib = 0;    ///< microseconds per MiB of pinned memory
  double pageable_us_per_mib = 0;  ///< microseconds per MiB of pageable memory, through the buffer
  /// Bytes of the driver's buffer. A copy from pageable memory that fits does not wait for the
  /// stream.
  std::size_t staged_bytes = 0;

  /// Returns the default: published figures. device_timing.cpp names the sources.
  static CopyModel published();
  /// Returns a model in which every copy takes no time.
  static CopyModel none() { return {}; }

  /// Returns the nanoseconds that moving `bytes` takes, without the setup.
  std::int64_t bytes_ns(std::size_t bytes, bool pinned) const;
  /// Returns the nanoseconds that the copy occupies its engine.
  std::int64_t engine_ns(const HostCopy& copy) const;
};

CACHALOT_END_API
