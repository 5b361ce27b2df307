// The functions of CUDAAllocator whose form is torch 2.11's.
#pragma once

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

}  // namespace cachalot::torch_adapter
