// Locks that are held for tens of nanoseconds, never across a driver call or a callback: a test-and-set spin lock whose
// unlock is a plain store, 12 ns a pair less than a pthread mutex in a process with threads; and the allocator's, which
// threads that want it all the time use in turns.
//
// Annotated for Clang's thread-safety analysis, which does not understand std::mutex on libstdc++.
#pragma once

#include <sched.h>

#include <atomic>
#include <chrono>

#include "base/bits.h"
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
#define CACHALOT_ASSERT_CAPABILITY(...) CACHALOT_THREAD_ANNOTATION(assert_capability(__VA_ARGS__))
#define CACHALOT_NO_THREAD_SAFETY_ANALYSIS CACHALOT_THREAD_ANNOTATION(no_thread_safety_analysis)

CACHALOT_BEGIN

class CACHALOT_CAPABILITY("mutex") SpinMutex {
 public:
  void lock() CACHALOT_ACQUIRE() {
    if (!try_once()) [[unlikely]]
      while (!spin()) sched_yield();  // the holder may have been preempted
  }
  void unlock() CACHALOT_RELEASE() { locked_.store(false, std::memory_order_release); }

 protected:
  bool is_locked() const { return locked_.load(std::memory_order_relaxed); }
  bool try_once() { return !locked_.exchange(true, std::memory_order_acquire); }
  // False: it has been locked for some microseconds.
  [[gnu::noinline]] bool spin() {
    for (int tries = 0; tries < 64; ++tries) {
      if (!is_locked() && try_once()) return true;
      pause(1);
    }
    return false;
  }
  static void pause(int times) {
    for (int i = 0; i < times; ++i) pause_processor();
  }

 private:
  alignas(kCacheLine) std::atomic<bool> locked_{false};  // alone on its line, away from what it guards
};

// A Held is a token: whoever has a reference to one runs while its Mutex is locked. It has no data, it is a base of the Mutex
// itself, so that passing it on costs nothing. In a signature, `const Held&` says that the function keeps the lock
// throughout, and `Held&` that it may let the lock go (Unlocked): whatever its caller knew may then have changed.
class Held {
 public:
  Held(const Held&) = delete;
  Held& operator=(const Held&) = delete;

 protected:
  Held() = default;
  ~Held() = default;
};

template <typename Owner>
class DeviceLock;
template <typename AnyMutex>
class Unlocked;

// To hand the allocator's lock over costs a microsecond, since what it guards has to come from the other processor's cache,
// too. So a thread that had to wait for it keeps it for a turn of 30 us, during which the others hardly look, as long as it
// uses it often: two threads together keep nine tenths of the throughput of one; with a lock for whoever sees it free first
// it was two thirds (bench/peers.py, threads).
class CACHALOT_CAPABILITY("mutex") Mutex : private SpinMutex, private Held {
 public:
  void lock() CACHALOT_ACQUIRE() {
    if (!try_once()) [[unlikely]]
      lock_contended();
  }
  void unlock() CACHALOT_RELEASE() { SpinMutex::unlock(); }

 private:
  template <typename Owner>
  friend class DeviceLock;      // makes the token, …
  friend class Unlocked<Held>;  // … and uses it
  using Clock = std::chrono::steady_clock;
  static constexpr Clock::duration kTurn = std::chrono::microseconds(30);

  [[gnu::noinline]] void lock_contended() {
    await_turn();
    while (!spin()) {  // another of those that waited has begun a turn, or the holder was preempted
      sched_yield();
      await_turn();
    }
    turn_began_.store(Clock::now().time_since_epoch(), std::memory_order_relaxed);
  }
  void await_turn() const {
    while (!turn_is_over() && is_used_often()) rest();
  }
  // Each look costs who uses it a tenth of a microsecond or two: so there is a rest between them.
  bool is_used_often() const {
    for (int looks = 0; looks < 8; ++looks) {
      if (is_locked()) return true;
      pause(2);
    }
    return false;
  }
  static void rest() {
    const Clock::time_point end = Clock::now() + kTurn / 4;
    while (Clock::now() < end) pause(16);
  }
  bool turn_is_over() const {
    return Clock::now().time_since_epoch() - turn_began_.load(std::memory_order_relaxed) >= kTurn;
  }

  alignas(kCacheLine) std::atomic<Clock::duration> turn_began_{Clock::duration::zero()};  // of who had to wait for it
};

template <typename AnyMutex>
class CACHALOT_SCOPED_CAPABILITY Lock {
 public:
  explicit Lock(AnyMutex& mutex) CACHALOT_ACQUIRE(mutex) : mutex_(mutex) { mutex_.lock(); }
  ~Lock() CACHALOT_RELEASE() { mutex_.unlock(); }
  Lock(const Lock&) = delete;
  Lock& operator=(const Lock&) = delete;

 private:
  AnyMutex& mutex_;
};

// Lets the lock go for a stretch of a function that holds it: around driver calls and the user's callbacks.
template <typename AnyMutex>
class Unlocked {
 public:
  explicit Unlocked(AnyMutex& mutex) CACHALOT_NO_THREAD_SAFETY_ANALYSIS : mutex_(mutex) { mutex_.unlock(); }
  ~Unlocked() CACHALOT_NO_THREAD_SAFETY_ANALYSIS { mutex_.lock(); }
  Unlocked(const Unlocked&) = delete;
  Unlocked& operator=(const Unlocked&) = delete;

 private:
  AnyMutex& mutex_;
};

CACHALOT_END
