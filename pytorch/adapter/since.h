// The functions of CUDAAllocator whose form is that of torch 2.11, and what each later version asks for beyond the one before it.
#pragma once

#include <torch/version.h>

#include <cmath>
#include <exception>

#include "adapter/torch_allocator.h"

namespace cachalot::torch_adapter {

class AllocatorSince2_11 : public TorchAllocator {
 public:
  using TorchAllocator::TorchAllocator;

  cuda_caching::SnapshotInfo snapshot(MempoolId_t pool, bool include_traces) override {
    return take_snapshot(pool, include_traces);
  }
  void createOrIncrefPool(DeviceIndex device, MempoolId_t pool,
                          std::shared_ptr<cuda_caching::CUDAAllocator> allocator) override {
    retain_pool(device, pool, std::move(allocator));
  }
  void setUseOnOOM(DeviceIndex device, MempoolId_t pool, bool use_on_oom) override {
    use_pool_on_oom(device, pool, use_on_oom);
  }
  void recordHistory(bool enabled, cuda_caching::CreateContextFn recorder, std::size_t max_entries,
                     cuda_caching::RecordContext when, bool clear,
                     const std::vector<std::string>& skip_actions) override {
    record(enabled, recorder, max_entries, when, clear, skip_actions);
  }
};

#if TORCH_VERSION_MINOR >= 12
class AllocatorSince2_12 : public AllocatorSince2_11 {
 public:
  using AllocatorSince2_11::AllocatorSince2_11;

  // Returns the place where the allocation was made, if history records it; null for any other pointer.
  std::shared_ptr<c10::GatheredContext> getContextForPointer(const void* ptr) override {
    return as_torch([&] { return to_torch(plug_.context_of(ptr)); });
  }

  // torch's own allocator calls it on a thread of its own, some time later, and logs what it throws. Here it has been
  // called when the request fails.
  void attachOomRejectionObserver(cuda_caching::OomRejectionObserver observer) override {
    plug_.add_refusal_observer([observer = std::move(observer)](const RefusalReport& report) {
      try {
        observer(report.device, report.segment_bytes, report.held_bytes, report.total_bytes);
      } catch (const std::exception& error) {
        TORCH_WARN("Exception in OOM rejection observer: ", error.what());
      } catch (...) {
        TORCH_WARN("Unknown exception in OOM rejection observer");
      }
    });
  }
};
#endif

#if TORCH_VERSION_MINOR >= 13
class AllocatorSince2_13 : public AllocatorSince2_12 {
 public:
  using AllocatorSince2_12::AllocatorSince2_12;

  // torch reports captures separately: redirections, also those of graphs, are of requests alone.
  void beginAllocateToPool(DeviceIndex device, MempoolId_t pool, std::function<bool(cudaStream_t)> filter) override {
    newest_pool = pool;
    as_torch([&] { plug_.begin_allocate_to_pool(device, to_pool_id(pool), std::move(filter), RedirectFor::requests); });
  }
  void markCaptureBegin(DeviceIndex device) override {
    as_torch([&] { plug_.begin_capture(device); });
  }
  void markCaptureEnd(DeviceIndex device) override {
    as_torch([&] { plug_.end_capture(device); });
  }

  // The limit is the nearest whole number of bytes, which is read back.
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
#endif

#if TORCH_VERSION_MINOR >= 14
class AllocatorSince2_14 : public AllocatorSince2_13 {
 public:
  using AllocatorSince2_13::AllocatorSince2_13;

  bool supportsUserMetadata() override { return true; }

  void annotateMemory(const void* ptr, const std::string& metadata) override {
    as_torch([&] { plug_.annotate(ptr, Annotations::of_this_thread().current_with(metadata)); });
  }
};
#endif

}  // namespace cachalot::torch_adapter
