// Live allocations whose free the device has refused so far: they are freed later. Thread safety: any thread.
#pragma once

#include <cstddef>
#include <mutex>
#include <utility>
#include <vector>

#include "cachalot/version.h"

CACHALOT_BEGIN

class LateFrees {
 public:
  // Returns true for the first that there ever was.
  bool add(void* ptr) {
    const std::lock_guard<std::mutex> lock(mutex_);
    waiting_.push_back(ptr);
    return !std::exchange(has_had_any_, true);
  }

  // Calls free(ptr), which returns false to be asked again, for each without the lock. Returns whether anything was freed.
  template <typename Free>
  bool retry(Free free) {
    std::vector<void*> late;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      late.swap(waiting_);
    }
    const std::size_t freed = std::erase_if(late, free);
    const std::lock_guard<std::mutex> lock(mutex_);
    waiting_.insert(waiting_.end(), late.begin(), late.end());
    return freed != 0;
  }

 private:
  std::mutex mutex_;
  std::vector<void*> waiting_;
  bool has_had_any_ = false;
};

CACHALOT_END
