// A token in a function's signature says which locks of the device's allocator the function needs.
//
//   const Held&   the device's mutex is held throughout the call
//   Held&         it is held, but the function may release it for a while: what the caller knew may then have changed
//   Growing&      as Held&, and no other thread grows the heap or returns memory during the call (growing.h)
//
// The order is: growth mutex, device mutex, then those of depots and of the page map. Driver calls, callbacks and
// observers run without the device mutex, except change trackers and watchers, which must not call the allocator.
//
// Clang's analysis cannot follow one mutex through many objects, so it checks two roles: `device_lock` stands for the
// mutex of the device at hand, `growth_lock` for its growth mutex. Every field that a mutex guards is annotated with
// its role.
#pragma once

#include "base/mutex.h"

CACHALOT_BEGIN

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

CACHALOT_END
