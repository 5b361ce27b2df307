// The size, the alignment and the way to be passed of each public type, as the including file is compiled: one as C++17 and one
// as C++20 (layouts_test.cpp).
#pragma once

#include <cstddef>
#include <type_traits>
#include <vector>

#include "cachalot/cub_scratch.h"
#include "cachalot/dlpack.h"
#include "cachalot/gpu_budget.h"
#include "cachalot/guard.h"
#include "cachalot/leak_detector.h"
#include "cachalot/pinned_host_allocator.h"
#include "cachalot/pool_set.h"
#include "cachalot/simulated_device.h"
#include "cachalot/slot_pool.h"

namespace cachalot::testing {

struct Layout {
  const char* type;
  std::size_t bytes;
  std::size_t alignment;
  bool in_registers;  // trivially copyable: passed as its bytes
};

std::vector<Layout> layouts_of_cpp17();

#define CACHALOT_LAYOUT(type) \
  Layout { #type, sizeof(type), alignof(type), std::is_trivially_copyable_v < type> }

// Static: each of the two files has its own.
static std::vector<Layout> layouts_here() {
  return {
      CACHALOT_LAYOUT(AddressRange),
      CACHALOT_LAYOUT(AllocateOptions),
      CACHALOT_LAYOUT(Allocation),
      CACHALOT_LAYOUT(AllocationSite),
      CACHALOT_LAYOUT(AllocationTrack),
      CACHALOT_LAYOUT(BlockMove),
      CACHALOT_LAYOUT(BlockSnapshot),
      CACHALOT_LAYOUT(BudgetFigures),
      CACHALOT_LAYOUT(BudgetMember),
      CACHALOT_LAYOUT(BudgetOptions),
      CACHALOT_LAYOUT(CachingAllocator),
      CACHALOT_LAYOUT(CallFrame),
      CACHALOT_LAYOUT(CallStack),
      CACHALOT_LAYOUT(CaptureStatus),
      CACHALOT_LAYOUT(Change),
      CACHALOT_LAYOUT(CopyModel),
      CACHALOT_LAYOUT(CubScratch),
      CACHALOT_LAYOUT(CudaError),
      CACHALOT_LAYOUT(Deallocate),
      CACHALOT_LAYOUT(DeviceProperties),
      CACHALOT_LAYOUT(DeviceStats),
      CACHALOT_LAYOUT(Fault),
      CACHALOT_LAYOUT(ForeignTensor),
      CACHALOT_LAYOUT(Fragmentation),
      CACHALOT_LAYOUT(GpuBudget),
      CACHALOT_LAYOUT(GuardCall),
      CACHALOT_LAYOUT(GuardReport),
      CACHALOT_LAYOUT(HandleInfo),
      CACHALOT_LAYOUT(HistoryOptions),
      CACHALOT_LAYOUT(HostCopy),
      CACHALOT_LAYOUT(IpcHandle),
      CACHALOT_LAYOUT(LatencyModel),
      CACHALOT_LAYOUT(Leak),
      CACHALOT_LAYOUT(LeakDetector),
      CACHALOT_LAYOUT(LeakDetectorOptions),
      CACHALOT_LAYOUT(LeakReport),
      CACHALOT_LAYOUT(LoggedCall),
      CACHALOT_LAYOUT(MemoryAt),
      CACHALOT_LAYOUT(MemoryInfo),
      CACHALOT_LAYOUT(Options),
      CACHALOT_LAYOUT(OutOfMemory),
      CACHALOT_LAYOUT(OutOfMemoryReport),
      CACHALOT_LAYOUT(PatternMismatch),
      CACHALOT_LAYOUT(PatternSpan),
      CACHALOT_LAYOUT(PinnedHostAllocator),
      CACHALOT_LAYOUT(PoolCheckpoint),
      CACHALOT_LAYOUT(PoolId),
      CACHALOT_LAYOUT(PoolSet),
      CACHALOT_LAYOUT(PoolStats),
      CACHALOT_LAYOUT(PooledTensor),
      CACHALOT_LAYOUT(PytorchConf),
      CACHALOT_LAYOUT(RestoreResult),
      CACHALOT_LAYOUT(ScriptFrame),
      CACHALOT_LAYOUT(SegmentSnapshot),
      CACHALOT_LAYOUT(ShareableHandle),
      CACHALOT_LAYOUT(SharedMemory),
      CACHALOT_LAYOUT(SimulatedDevice),
      CACHALOT_LAYOUT(SimulatedDevice::Config),
      CACHALOT_LAYOUT(SlotPool),
      CACHALOT_LAYOUT(SlotPoolControl),
      CACHALOT_LAYOUT(SlotPoolCounters),
      CACHALOT_LAYOUT(SlotPoolView),
      CACHALOT_LAYOUT(Snapshot),
      CACHALOT_LAYOUT(Span<const BlockMove>),
      CACHALOT_LAYOUT(Stat),
      CACHALOT_LAYOUT(StatArray),
      CACHALOT_LAYOUT(TensorPool),
      CACHALOT_LAYOUT(TensorPoolOptions),
      CACHALOT_LAYOUT(TensorSpec),
      CACHALOT_LAYOUT(TrackReport),
  };
}

#undef CACHALOT_LAYOUT

}  // namespace cachalot::testing
