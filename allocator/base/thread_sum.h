// A sum that one thread changes at the cost of a few plain instructions, and anyone may read.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <utility>

#include "base/check.h"

CACHALOT_BEGIN

// Thread safety: add and subtract by its thread; gather by one thread at a time; the rest by any.
class ThreadSum {
 public:
  // What the thread did since the last gather: added, the change of the sum, and the highest that this change ever was.
  struct Gathered {
    std::int64_t added, change, highest;
  };

  CACHALOT_FAST_PATH void add(std::int64_t amount) {
    const std::int64_t added = added_.load(std::memory_order_relaxed) + amount;
    added_.store(added, std::memory_order_relaxed);
    const std::int64_t current = added - subtracted_.load(std::memory_order_relaxed);
    if (current > highest_.load(std::memory_order_relaxed)) highest_.store(current, std::memory_order_relaxed);
  }
  CACHALOT_FAST_PATH void subtract(std::int64_t amount) {
    subtracted_.store(subtracted_.load(std::memory_order_relaxed) + amount, std::memory_order_relaxed);
  }
  CACHALOT_FAST_PATH std::int64_t current() const {
    return added_.load(std::memory_order_relaxed) - subtracted_.load(std::memory_order_relaxed);
  }
  std::int64_t ungathered() const { return current() - gathered_.load(std::memory_order_relaxed); }
  bool has_news() const { return ungathered() != 0 || added_.load(std::memory_order_relaxed) != gathered_added_; }
  // While its thread is at work a peak may be missed.
  Gathered gather() {
    const std::int64_t added = added_.load(std::memory_order_relaxed);
    const std::int64_t current = added - subtracted_.load(std::memory_order_relaxed);
    const std::int64_t base = gathered_.load(std::memory_order_relaxed);
    const std::int64_t highest = std::max(current, highest_.load(std::memory_order_relaxed));
    highest_.store(current, std::memory_order_relaxed);
    gathered_.store(current, std::memory_order_relaxed);
    return {added - std::exchange(gathered_added_, added), current - base, highest - base};
  }

 private:
  // Two words instead of their difference: so an add need not wait for the subtract before it.
  std::atomic<std::int64_t> added_{0};
  std::atomic<std::int64_t> subtracted_{0};
  std::atomic<std::int64_t> highest_{0};   // of current() since the last gather
  std::atomic<std::int64_t> gathered_{0};  // of current()
  std::int64_t gathered_added_ = 0;
};

CACHALOT_END
