// What torch 2.13 asks of an allocator beyond 2.12.
#pragma once

#include <cmath>

#include "adapter/since_2_12.h"

namespace cachalot::torch_adapter {

class AllocatorSince2_13 : public AllocatorSince2_12 {
 public:
  using AllocatorSince2_12::AllocatorSince2_12;

  // torch tells of captures apart: redirections, also those of graphs, are of requests alone.
  void beginAllocateToPool(DeviceIndex device, MempoolId_t pool, std::function<bool(cudaStream_t)> filter) override {
    as_torch([&] { plug_.begin_allocate_to_pool(device, to_pool_id(pool), std::move(filter), RedirectFor::requests); });
  }
  void markCaptureBegin(DeviceIndex device) override {
    as_torch([&] { plug_.begin_capture(device); });
  }
  void markCaptureEnd(DeviceIndex device) override {
    as_torch([&] { plug_.end_capture(device); });
  }

  // The limit is the nearest whole number of bytes, which is what is read back.
  void setMemoryFraction(double fraction, DeviceIndex device) override {
    const auto total = static_cast<double>(getMemoryInfo(device).second);
    const bool is_valid = fraction >= 0 && fraction < 1;  // others are refused, or lift the limit
    AllocatorSince2_12::setMemoryFraction(is_valid ? whole_bytes(fraction, total) : fraction, device);
  }
  double getMemoryFraction(DeviceIndex device) override {
    const double fraction = AllocatorSince2_12::getMemoryFraction(device);
    if (fraction == 1) return fraction;
    const auto total = static_cast<double>(getMemoryInfo(device).second);
    return std::round(fraction * total) / total;
  }

  c10::DataPtr allocateWithAddress(std::size_t bytes, void* address) override {
    TORCH_CHECK(isEnabled(), "Exact-address allocation is only supported by the native CUDA caching allocator");
    DeviceIndex device = 0;
    C10_CUDA_CHECK(c10::cuda::GetDevice(&device));
    void* ptr = nullptr;
    if (bytes != 0) {
      const cudaStream_t stream = c10::cuda::getCurrentCUDAStream(device);
      ptr = as_torch([&] { return plug_.allocate_at(bytes, device, stream, address); });
      tell_of_allocation(ptr, device);
    }
    return {ptr, ptr, raw_deleter(), c10::Device(c10::kCUDA, device)};
  }

 private:
  // The fraction of which cachalot, which rounds down, makes as many bytes as rounding makes of this one.
  static double whole_bytes(double fraction, double total) {
    const double bytes = std::round(fraction * total);
    const double exact = bytes / total;
    return std::floor(exact * total) < bytes ? std::nextafter(exact, 1.0) : exact;
  }
};

}  // namespace cachalot::torch_adapter
