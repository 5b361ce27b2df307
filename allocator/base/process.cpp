#include "base/process.h"

#include <unistd.h>

#include <mutex>
#include <new>

#include "base/check.h"
#include "base/format.h"

CACHALOT_BEGIN

// All that there are. Its mutex is held for a few instructions, and by who forks: so the child finds the list whole. No
// lock that is held across a call of the driver may be taken before a fork, since the driver forks itself (for
// nvidia-modprobe).
struct ForkAware::Registry {
  static void add(ForkAware& object) {
    const std::lock_guard<std::mutex> lock(mutex);
    if (!watches) watches = pthread_atfork(before_fork, after_fork_in_parent, after_fork_in_child) == 0;
    if (!watches) throw std::bad_alloc();  // all that it fails for
    object.next_ = first;
    if (first != nullptr) first->previous_ = &object;
    first = &object;
  }

  static void remove(const ForkAware& object) {
    const std::lock_guard<std::mutex> lock(mutex);
    (object.previous_ != nullptr ? object.previous_->next_ : first) = object.next_;
    if (object.next_ != nullptr) object.next_->previous_ = object.previous_;
  }

  static void before_fork() { mutex.lock(); }
  static void after_fork_in_parent() { mutex.unlock(); }
  static void after_fork_in_child() {
    mutex.unlock();  // nobody else is here; and who is told may make objects
    for (ForkAware* object = first; object != nullptr; object = object->next_) {
      if (object->is_inherited_) continue;
      object->is_inherited_ = true;
      object->on_fork();
    }
  }

  static inline constinit std::mutex mutex;
  static inline constinit ForkAware* first = nullptr;
  static inline constinit bool watches = false;
};

ForkAware::ForkAware() : process_(getpid()) { Registry::add(*this); }
ForkAware::~ForkAware() { Registry::remove(*this); }

void ForkAware::refuse(const char* what) const {
  throw InvalidArgument(formatted(
      "{} belongs to process {}; this is process {}, which was forked from it: CUDA does not work in a forked child "
      "(start it by spawn or exec, or fork before CUDA is first used)",
      what, process_, getpid()));
}

CACHALOT_END
