// The adapter for torch 2.10, with the functions of CUDAAllocator whose form is that of 2.10.
#include "adapter/exports.h"
#include "adapter/torch_allocator.h"

namespace cachalot::torch_adapter {

class Allocator2_10 : public TorchAllocator {
 public:
  using TorchAllocator::TorchAllocator;

  cuda_caching::SnapshotInfo snapshot(MempoolId_t pool) override { return take_snapshot(pool, true); }
  // torch keeps the allocator alive for as long as the pool.
  void createOrIncrefPool(DeviceIndex device, MempoolId_t pool, cuda_caching::CUDAAllocator* allocator) override {
    retain_pool(device, pool, {allocator, [](cuda_caching::CUDAAllocator*) {}});
  }
  void setUseOnOOM(DeviceIndex device, MempoolId_t pool) override { use_pool_on_oom(device, pool, true); }
  void recordHistory(bool enabled, cuda_caching::CreateContextFn recorder, std::size_t max_entries,
                     cuda_caching::RecordContext when, bool clear) override {
    record(enabled, recorder, max_entries, when, clear, {});
  }
};

}  // namespace cachalot::torch_adapter

CACHALOT_ADAPTER(cachalot::torch_adapter::Allocator2_10, 10)
CACHALOT_PINNED_ADAPTER(PinnedAllocator)
