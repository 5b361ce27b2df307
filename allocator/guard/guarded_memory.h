// GuardedMemory writes and compares the patterns of one device's blocks: canaries around live ones, poison in freed
// ones.
//
// Lock: `mutex`. Who shares it looks at and writes the memory of blocks that it has to itself; who has it alone may
// look at every block. It comes before the locks of GuardBooks and Quarantine, and is held across calls of the device.
// Thread safety: any thread, under `mutex` where a function says so.
// Errors: of the device (CudaError).
#pragma once

#include <memory>
#include <vector>

#include "base/locks.h"
#include "cachalot/kernels.h"
#include "device_allocator.h"
#include "guard/guard_log.h"
#include "guard/guarded_block.h"
#include "streams/stream_order.h"

CACHALOT_BEGIN

class GuardedMemory {
 public:
  using Reports = GuardLog::Reports;

  GuardedMemory(DeviceAllocator& heap, KernelsFactory make_kernels);

  SharedMutex mutex;

  // Returns the stream on which work with the memory of this stream's blocks goes: the stream itself; where it is no
  // more, the default stream. Blocks: in that case, until the device is done.
  Stream stream_for_work(const KnownStream& stream);
  // False while the stream, or the allocator, captures a graph.
  bool may_wait(const KnownStream& stream);

  void write_canaries(GuardedBlock& block) CACHALOT_REQUIRES_SHARED(mutex);
  // Fills all of the block, whose pattern counts as unknown from then on. Blocks: until that is done, so that the
  // block's streams may go.
  void poison(GuardedBlock& block) CACHALOT_REQUIRES_SHARED(mutex);
  // Compares the canaries after all work on the block. False: there are none, or that work must not be waited for.
  bool compare_canaries(GuardedBlock& block, Reports& found) CACHALOT_REQUIRES_SHARED(mutex);
  // Adds a report for each question that is answered with a difference.
  void compare(std::vector<GuardQuestion> questions, Stream stream, Reports& found) CACHALOT_REQUIRES_SHARED(mutex);

 private:
  Kernels& kernels(const PatternSpan& sample, Stream stream);
  bool wait_for_use(const KnownStream& user, Stream stream);

  const DeviceAllocator& heap_;
  const std::shared_ptr<Device> device_;
  const KernelsFactory make_kernels_;
  StreamOrder order_;
  SleepingMutex kernels_mutex_;
  std::unique_ptr<Kernels> kernels_ CACHALOT_GUARDED_BY(kernels_mutex_);  // made when first needed
};

CACHALOT_END
