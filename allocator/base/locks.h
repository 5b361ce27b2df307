// The locks of the allocator, annotated for Clang's thread-safety analysis, which does not understand std::mutex on libstdc++:
// spin locks, mutexes on which threads sleep, and the tokens that say which lock of a device is held.
#pragma once

#include <sched.h>

#include <atomic>
#include <chrono>
#include <mutex>
#include <shared_mutex>

#include "base/bits.h"
#include "base/bytes.h"
#include "base/host_memory.h"

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
#define CACHALOT_REQUIRES_SHARED(...) CACHALOT_THREAD_ANNOTATION(requires_shared_capability(__VA_ARGS__))
#define CACHALOT_ACQUIRE_SHARED(...) CACHALOT_THREAD_ANNOTATION(acquire_shared_capability(__VA_ARGS__))
#define CACHALOT_RELEASE_SHARED(...) CACHALOT_THREAD_ANNOTATION(release_shared_capability(__VA_ARGS__))

CACHALOT_BEGIN

// Locks that are held for tens of nanoseconds, never across a driver call or a callback: a test-and-set spin lock whose
// unlock is a plain store, 12 ns per pair less than a pthread mutex in a process with threads; and the allocator's,
// which threads that want it all the time use in turns.
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
  // Returns false if it has been locked for some microseconds.
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

// A Held is a token: code that has a reference to one runs while its Mutex is locked. It has no data, it is a base of the
// Mutex itself, so that passing it on costs nothing. In a signature, `const Held&` says that the function keeps the lock
// throughout, and `Held&` that it may release the lock (Unlocked): the state that its caller knew may then have changed.
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

// Handing the allocator's lock over costs a microsecond, since the guarded data has to come from the other processor's
// cache, too. So a thread that had to wait for it keeps it for a turn of 30 us, during which the others hardly look, as
// long as it uses it often: two threads together keep nine tenths of the throughput of one; with a lock for the first
// thread that sees it free it was two thirds (bench/peers.py, threads).
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
  // Each look costs the lock's user a tenth of a microsecond or two: so there is a rest between looks.
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

  alignas(kCacheLine) std::atomic<Clock::duration> turn_began_{Clock::duration::zero()};  // of the thread that waited
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

// Mutexes on which a thread that has to wait sleeps, for locks that may be held across driver calls or other long work:
// those of the standard library, annotated for Clang's thread-safety analysis.
class CACHALOT_CAPABILITY("mutex") SleepingMutex {
 public:
  void lock() CACHALOT_ACQUIRE() { mutex_.lock(); }
  void unlock() CACHALOT_RELEASE() { mutex_.unlock(); }

 private:
  std::mutex mutex_;
};

class CACHALOT_CAPABILITY("mutex") SharedMutex {
 public:
  void lock() CACHALOT_ACQUIRE() { mutex_.lock(); }
  void unlock() CACHALOT_RELEASE() { mutex_.unlock(); }
  void lock_shared() CACHALOT_ACQUIRE_SHARED() { mutex_.lock_shared(); }
  void unlock_shared() CACHALOT_RELEASE_SHARED() { mutex_.unlock_shared(); }
  // Tells the analysis, inside a lambda that is called under the lock, that it is held. Does nothing.
  void assert_held() const CACHALOT_THREAD_ANNOTATION(assert_capability(this)) {}

 private:
  std::shared_mutex mutex_;
};

// A SharedLock holds a SharedMutex together with others that share it, for a scope or until unlock.
class CACHALOT_SCOPED_CAPABILITY SharedLock {
 public:
  explicit SharedLock(SharedMutex& mutex) CACHALOT_ACQUIRE_SHARED(mutex) : mutex_(mutex) { mutex_.lock_shared(); }
  ~SharedLock() CACHALOT_RELEASE() { mutex_.unlock_shared(); }
  SharedLock(const SharedLock&) = delete;
  SharedLock& operator=(const SharedLock&) = delete;

 private:
  SharedMutex& mutex_;
};

// A token in a function's signature says which locks of the device's allocator the function needs.
//
//   const Held&   the device's mutex is held throughout the call
//   Held&         it is held, but the function may release it for a while: what the caller knew may then have changed
//   Growing&      as Held&, and no other thread grows the heap or returns memory during the call
//
// The order is: growth mutex, device mutex, then those of depots and of the page map. Driver calls, callbacks and
// observers run without the device mutex, except change trackers and watchers, which must not call the allocator.
//
// Clang's analysis cannot follow one mutex through many objects, so it checks two roles: `device_lock` stands for the
// mutex of the device at hand, `growth_lock` for its growth mutex. Every field that a mutex guards is annotated with
// its role.

class CACHALOT_CAPABILITY("role") LockRole {};
inline constexpr LockRole device_lock;  // NOLINT(readability-identifier-naming): it stands for a mutex
inline constexpr LockRole growth_lock;  // NOLINT(readability-identifier-naming)

// These repeat the token of a function for Clang's analysis, behind its signature.
#define CACHALOT_HELD CACHALOT_REQUIRES(cachalot::device_lock)
#define CACHALOT_GROWING CACHALOT_REQUIRES(cachalot::device_lock, cachalot::growth_lock)

// Tells Clang's analysis inside a lambda that the lock is held, since an attribute of the lambda would bind its
// callers.
inline void holds(const Held& /*held*/) CACHALOT_ASSERT_CAPABILITY(device_lock) {}

// A DeviceLock holds a device's mutex for its scope and converts to the token. It takes the mutex, or an object with a
// member `mutex`: on the fast path the compiler then needs no register for the mutex beside that of the object.
template <typename Owner>
class CACHALOT_SCOPED_CAPABILITY DeviceLock {
 public:
  explicit DeviceLock(Owner& owner) CACHALOT_ACQUIRE(device_lock) CACHALOT_NO_THREAD_SAFETY_ANALYSIS : owner_(owner) {
    mutex_of(owner_).lock();
  }
  ~DeviceLock() CACHALOT_RELEASE() CACHALOT_NO_THREAD_SAFETY_ANALYSIS { mutex_of(owner_).unlock(); }
  DeviceLock(const DeviceLock&) = delete;
  DeviceLock& operator=(const DeviceLock&) = delete;

  operator Held&() const { return mutex_of(owner_); }  // NOLINT(google-explicit-constructor): it is the token

 private:
  static Mutex& mutex_of(Mutex& mutex) { return mutex; }
  template <typename Object>
  static Mutex& mutex_of(Object& object) {
    return object.mutex;
  }

  Owner& owner_;
};

// An Operation is a DeviceLock of a function that changes tables, and may need host memory for that. Throws std::bad_alloc,
// before anything has changed, if the reserve of host memory is not whole. Functions that give memory back do not need it.
class CACHALOT_SCOPED_CAPABILITY Operation : public DeviceLock<Mutex> {
 public:
  explicit Operation(Mutex& mutex) CACHALOT_ACQUIRE(device_lock) CACHALOT_NO_THREAD_SAFETY_ANALYSIS
      : DeviceLock((HostReserve::require(), mutex)) {}
  ~Operation() CACHALOT_RELEASE() CACHALOT_NO_THREAD_SAFETY_ANALYSIS {}  // NOLINT(modernize-use-equals-default)
};

// An Unlocked releases the device's mutex for its scope, in a function that holds it.
template <>
class CACHALOT_SCOPED_CAPABILITY Unlocked<Held> {
 public:
  explicit Unlocked(Held& held) CACHALOT_RELEASE(device_lock) CACHALOT_NO_THREAD_SAFETY_ANALYSIS
      : mutex_(static_cast<Mutex&>(held)) {
    mutex_.unlock();
  }
  ~Unlocked() CACHALOT_RELEASE() CACHALOT_NO_THREAD_SAFETY_ANALYSIS { mutex_.lock(); }
  Unlocked(const Unlocked&) = delete;
  Unlocked& operator=(const Unlocked&) = delete;

 private:
  Mutex& mutex_;
};

// A Growing is the token of the slow path: its thread alone grows the heap or returns memory, so that two threads in
// need do not both grow. Other threads still allocate free blocks meanwhile.
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
