// The clock of calls that pin host memory.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/sleeping_mutex.h"
#include "cachalot/pin_times.h"

CACHALOT_BEGIN

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

CACHALOT_END
