// Pinned host memory as a Device: malloc pins, free unpins, and events are those of a GPU.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "base/locks.h"
#include "cachalot/device.h"
#include "cachalot/pin_times.h"

CACHALOT_BEGIN

// The clock of calls that pin host memory.
// A PinTimer adds up PinTimes. Thread-safe; its lock is the innermost one.
class PinTimer {
 public:
  // Counts a call that pinned `bytes` > 0 bytes and took `us` microseconds.
  void pinned(std::size_t bytes, std::int64_t us);
  // Counts a call that gave pinned memory back.
  void unpinned(std::int64_t us);

  PinTimes times() const;
  // Counts and sums start again from 0.
  void reset_accumulated();
  // Minima and maxima start again.
  void reset_peak();

 private:
  mutable SleepingMutex mutex_;
  PinTimes times_ CACHALOT_GUARDED_BY(mutex_);
};

// The legacy default stream, where nullptr stands for the host: cudaStreamLegacy.
inline const Stream kLegacyStream = reinterpret_cast<Stream>(1);

// Device 0 of an allocator. Its memory_info is the machine's. It has no virtual memory and shares nothing between processes:
// such calls throw CudaError (not supported). event_record throws InvalidArgument for a stream that captures. `timer` counts
// the calls of malloc and free.
std::shared_ptr<Device> pinned_host_memory(std::shared_ptr<Device> gpu, std::shared_ptr<PinTimer> timer);

CACHALOT_END
