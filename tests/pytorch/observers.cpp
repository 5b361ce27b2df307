// The hooks that PyTorch's C++ users attach to its allocator: a trace tracker (as NCCL's registration does) and a callback
// that frees memory (as CUDA IPC does). And their queries of its settings. Compiled by test_observers.py.
#include <c10/core/AllocatorConfig.h>
#include <c10/cuda/CUDACachingAllocator.h>

#include <atomic>

namespace {

using c10::CachingDeviceAllocator::TraceEntry;

std::atomic<long> seen[TraceEntry::OOM + 1];
std::atomic<long> calls;
void* spare = nullptr;  // memory that the callback gives back

class GiveSpareBack final : public c10::FreeMemoryCallback {
 public:
  bool Execute() override {
    ++calls;
    if (spare == nullptr) return false;
    c10::cuda::CUDACachingAllocator::raw_delete(spare);
    spare = nullptr;
    return true;
  }
};

}  // namespace

namespace c10 {
REGISTER_FREE_MEMORY_CALLBACK("cachalot_test", GiveSpareBack);
}  // namespace c10

extern "C" {
[[gnu::visibility("default")]] void attach_tracker() {
  c10::cuda::CUDACachingAllocator::attachAllocatorTraceTracker([](const TraceEntry& entry) { ++seen[entry.action_]; });
}
[[gnu::visibility("default")]] long times_seen(int action) { return seen[action]; }
[[gnu::visibility("default")]] long callback_calls() { return calls; }
// Returns the value of CUDAAllocatorConfig::expandable_segments, which is constant if the compiler does not have
// torch's own macros.
[[gnu::visibility("default")]] int has_expandable_segments() {
  return c10::CachingAllocator::AcceleratorAllocatorConfig::use_expandable_segments() ? 1 : 0;
}
[[gnu::visibility("default")]] void keep_spare(void* memory) { spare = memory; }
}
