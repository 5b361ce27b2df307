// The costs of calls and copies on the simulated device.
//
// The latency model's figures are per call, in host microseconds, as published or reported for recent data-centre
// GPUs; sources disagree by up to ten times, so measure (bench/device_costs) before you trust them.

#include "cachalot/simulated_device.h"

#include <cmath>

#include "base/bytes.h"

CACHALOT_BEGIN

LatencyModel LatencyModel::none() { return {}; }

LatencyModel LatencyModel::published() {
  LatencyModel model;
  const auto set = [&](DeviceCall call, double us, double us_per_mib = 0) {
    model.call_us[static_cast<std::size_t>(call)] = us;
    model.call_us_per_mib[static_cast<std::size_t>(call)] = us_per_mib;
  };
  // Reported figures (the design's table).
  set(DeviceCall::malloc, 100, 0.05);
  set(DeviceCall::free, 150);  // and it waits for the device
  set(DeviceCall::reserve, 2);
  set(DeviceCall::create, 29);
  set(DeviceCall::map, 2);
  set(DeviceCall::set_access, 38);  // one call for a whole range
  set(DeviceCall::unmap, 34);
  set(DeviceCall::release, 23);
  set(DeviceCall::event_record, 0.8);
  set(DeviceCall::event_query, 0.4);
  set(DeviceCall::stream_wait, 0.8);
  // Pins each page: about 4 GiB/s. Reported: 5 GB/s (rapidsai/dask-cuda, pull request 98).
  set(DeviceCall::host_malloc, 100, 250);
  // Assumed: no figure was found; by likeness to the calls above.
  set(DeviceCall::unreserve, 2);          // as reserve
  set(DeviceCall::host_free, 100, 60);    // unpins them
  set(DeviceCall::copy_to_host, 10, 40);  // 25 GiB/s: what pinned memory reaches over PCIe 4
  set(DeviceCall::copy_from_host, 10, 40);
  set(DeviceCall::fill, 2);                  // as a kernel launch
  set(DeviceCall::event_create, 0.5);        // host memory only
  set(DeviceCall::event_destroy, 0.5);       // host memory only
  set(DeviceCall::event_synchronize, 1);     // besides the wait itself
  set(DeviceCall::synchronize, 2);           // besides the wait itself
  set(DeviceCall::capture_status, 0.1);      // reads a field of the stream
  set(DeviceCall::memory_info, 10);          // asks the kernel driver
  set(DeviceCall::ipc_export, 10);           // asks the kernel driver
  set(DeviceCall::ipc_import, 100);          // as malloc: maps memory
  set(DeviceCall::ipc_close, 100);           // as malloc: unmaps memory
  set(DeviceCall::export_handle, 10);        // as ipc_export
  set(DeviceCall::import_handle, 10);        // as ipc_export: nothing is mapped yet
  set(DeviceCall::enable_peer_access, 100);  // as malloc: maps all of the peer's memory
  set(DeviceCall::malloc_async, 100, 0.05);  // as malloc: a pool that keeps nothing asks the system each time
  set(DeviceCall::malloc_managed, 100);      // as malloc; the memory comes when it is used
  set(DeviceCall::free_async, 2);            // as a kernel launch: queued
  set(DeviceCall::copy, 2);                  // as a kernel launch; CopyModel has the copy itself
  return model;
}

// Returns the costs of copies between host and device. Figures are of PCIe 4.0 x16 and GPUs of the data centre.
CopyModel CopyModel::published() {
  CopyModel model;
  // An A100 in either direction, by nvbandwidth 0.8: 24.8 GB/s (NVIDIA's developer forums, topic 352186).
  model.pinned_us_per_mib = 42;
  // Less than a half of it, since the driver moves the bytes a second time: 5 to 6 GB/s against 11 to 12 on PCIe 3.0
  // (rapidsai/dask-cuda, pull request 98), 9.6 against 32 on an RTX 5090 (kekzl/imp, pull request 1409), 1.4 against
  // 12.6 towards the host on an A100 (pytorch/pytorch, pull request 138018). This is 10 GB/s.
  model.pageable_us_per_mib = 105;
  // Up to here a copy from pageable memory does not wait ("API synchronization behavior" and "Asynchronous Concurrent
  // Execution" in CUDA's documentation).
  model.staged_bytes = 64 * kKiB;
  model.setup_us = 2;  // assumed: the engine fetches its order over the bus, there and back
  return model;
}

std::int64_t CopyModel::bytes_ns(std::size_t bytes, bool pinned) const {
  constexpr double kLongestNs = 1e12;  // an absurd size must not overflow the clock
  const double us_per_mib = pinned ? pinned_us_per_mib : pageable_us_per_mib;
  const double us = us_per_mib * static_cast<double>(bytes) / static_cast<double>(kMiB);
  return std::llround(std::fmin(us * 1000, kLongestNs));
}

std::int64_t CopyModel::engine_ns(const HostCopy& copy) const {
  const bool is_staged = copy.direction == CopyDirection::to_device && copy.bytes <= staged_bytes;
  return std::llround(setup_us * 1000) + bytes_ns(copy.bytes, copy.pinned || is_staged);
}

CACHALOT_END
