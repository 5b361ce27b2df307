// The allocator's lock: held for tens of nanoseconds, never across a driver call or a callback.
//
// A test-and-set spin lock with exponential pause and an unlock that is a plain store: 12 ns a pair less than a pthread
// mutex in a process with threads, and two threads with a stream each keep four times its throughput (measured on the
// prototype; bench/ repeats it). After a dozen tries it yields, so a preempted holder is not waited for at full speed.
//
// Annotated for Clang's thread-safety analysis, which does not understand std::mutex on libstdc++.
#pragma once

#include <sched.h>

#include <atomic>

#include "base/bytes.h"

#if defined(__clang__)
#define CACHALOT_THREAD_ANNOTATION(x) __attribute__((x))
#else
#define CACHALOT_THREAD_ANNOTATION(x)
#endif
#define CACHALOT_CAPABILITY(x) CACHALOT_THREAD_ANNOTATION(capability(x))
#define CACHALOT_SCOPED_CAPABILITY CACHALOT_THREAD_ANNOTATION(scoped_lockable)
#define CACHALOT_GUARDED_BY(x) CACHALOT_THREAD_ANNOTATION(guarded_by(x))
#define CACHALOT_REQUIRES(...) CACHALOT_THREAD_ANNOTATION(requires_capability(__VA_ARGS__))
#define CACHALOT_EXCLUDES(...) CACHALOT_THREAD_ANNOTATION(locks_excluded(__VA_ARGS__))
#define CACHALOT_ACQUIRE(...) CACHALOT_THREAD_ANNOTATION(acquire_capability(__VA_ARGS__))
#define CACHALOT_RELEASE(...) CACHALOT_THREAD_ANNOTATION(release_capability(__VA_ARGS__))
#define CACHALOT_NO_THREAD_SAFETY_ANALYSIS CACHALOT_THREAD_ANNOTATION(no_thread_safety_analysis)

namespace cachalot {

class CACHALOT_CAPABILITY("mutex") Mutex {
 public:
  void lock() CACHALOT_ACQUIRE() {
    if (locked_.exchange(true, std::memory_order_acquire)) [[unlikely]]
      lock_contended();
  }
  void unlock() CACHALOT_RELEASE() { locked_.store(false, std::memory_order_release); }

 private:
  [[gnu::noinline]] void lock_contended() {
    int tries = 0;
    int pauses = 4;
    do {
      while (locked_.load(std::memory_order_relaxed)) {
        if (++tries > 12) {
          sched_yield();
          continue;
        }
        for (int i = 0; i < pauses; ++i) __builtin_ia32_pause();
        if (pauses < 128) pauses *= 2;
      }
    } while (locked_.exchange(true, std::memory_order_acquire));
  }

  alignas(kCacheLine) std::atomic<bool> locked_{false};  // alone on its line, away from what it guards
};

class CACHALOT_SCOPED_CAPABILITY Lock {
 public:
  explicit Lock(Mutex& mutex) CACHALOT_ACQUIRE(mutex) : mutex_(mutex) { mutex_.lock(); }
  ~Lock() CACHALOT_RELEASE() { mutex_.unlock(); }
  Lock(const Lock&) = delete;
  Lock& operator=(const Lock&) = delete;

 private:
  Mutex& mutex_;
};

// Lets the lock go for a stretch of a function that holds it: around driver calls and the user's callbacks.
class Unlocked {
 public:
  explicit Unlocked(Mutex& mutex) CACHALOT_NO_THREAD_SAFETY_ANALYSIS : mutex_(mutex) { mutex_.unlock(); }
  ~Unlocked() CACHALOT_NO_THREAD_SAFETY_ANALYSIS { mutex_.lock(); }
  Unlocked(const Unlocked&) = delete;
  Unlocked& operator=(const Unlocked&) = delete;

 private:
  Mutex& mutex_;
};

}  // namespace cachalot
