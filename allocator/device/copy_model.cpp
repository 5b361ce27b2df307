// What copies between host and device cost. Figures are of PCIe 4.0 x16 and GPUs of the data centre.
#include <cmath>

#include "base/bytes.h"
#include "cachalot/simulated_device.h"

CACHALOT_BEGIN

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
