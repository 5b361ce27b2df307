// Mutexes on which a thread that has to wait sleeps, for locks that may be held across driver calls or other long work:
// those of the standard library, annotated for Clang's thread-safety analysis.
#pragma once

#include <mutex>
#include <shared_mutex>

#include "base/mutex.h"

#define CACHALOT_REQUIRES_SHARED(...) CACHALOT_THREAD_ANNOTATION(requires_shared_capability(__VA_ARGS__))
#define CACHALOT_ACQUIRE_SHARED(...) CACHALOT_THREAD_ANNOTATION(acquire_shared_capability(__VA_ARGS__))
#define CACHALOT_RELEASE_SHARED(...) CACHALOT_THREAD_ANNOTATION(release_shared_capability(__VA_ARGS__))

CACHALOT_BEGIN

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

CACHALOT_END
