// A Growing is the token of the slow path: its thread alone grows the heap or returns memory, so that two threads in
// need do not both grow. Other threads still allocate free blocks meanwhile.
#pragma once

#include <mutex>

#include "base/device_lock.h"

CACHALOT_BEGIN

class CACHALOT_SCOPED_CAPABILITY Growing {
 public:
  // Releases the device's mutex while it waits for the growth mutex, which comes first in the order.
  Growing(std::mutex& growth_mutex, Held& held) CACHALOT_ACQUIRE(growth_lock) CACHALOT_NO_THREAD_SAFETY_ANALYSIS
      : growth_mutex_(growth_mutex),
        held_(held) {
    const Unlocked unlocked(held);
    growth_mutex_.lock();
  }
  ~Growing() CACHALOT_RELEASE() CACHALOT_NO_THREAD_SAFETY_ANALYSIS { growth_mutex_.unlock(); }
  Growing(const Growing&) = delete;
  Growing& operator=(const Growing&) = delete;

  operator Held&() const { return held_; }  // NOLINT(google-explicit-constructor): it is that token, too

 private:
  std::mutex& growth_mutex_;
  Held& held_;
};

inline void holds(const Growing& /*growing*/) CACHALOT_ASSERT_CAPABILITY(device_lock, growth_lock) {}

CACHALOT_END
