// What one thread uses without a lock, and others may take from it: a cache, a stack.
//
// Its thread comes and goes (enter, leave) at the cost of two plain stores. Whoever wants it recalls it: the thread is
// turned away from then on, and once it has left, the thing is the caller's until the recall ends. Those who recall
// take turns by a mutex of theirs, and the thread that was turned away waits for the same mutex.
//
//   recall(); heavy_fence(); wait_until_left(); … end_recall();
//
// Thread safety: enter and leave by its thread, the others with that mutex held.
#pragma once

#include <sched.h>

#include <atomic>

#include "base/asymmetric_fence.h"
#include "base/check.h"

CACHALOT_BEGIN

class Recallable {
 public:
  // False: someone has recalled it.
  CACHALOT_FAST_PATH bool enter() {
    busy_.store(true, std::memory_order_relaxed);
    light_fence();
    if (!recalled_.load(std::memory_order_acquire)) [[likely]]
      return true;
    leave();
    return false;
  }
  CACHALOT_FAST_PATH void leave() { busy_.store(false, std::memory_order_release); }

  void recall() { recalled_.store(true, std::memory_order_relaxed); }
  bool is_recalled() const { return recalled_.load(std::memory_order_relaxed); }
  // Nobody stays long: no lock of others and no call of a driver is waited for in there.
  void wait_until_left() const {
    while (busy_.load(std::memory_order_acquire)) sched_yield();
  }
  void end_recall() { recalled_.store(false, std::memory_order_release); }

 private:
  std::atomic<bool> busy_{false};
  std::atomic<bool> recalled_{false};
};

CACHALOT_END
