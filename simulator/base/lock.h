// The lock of the simulated process. Each call of CUDA's holds it from its beginning to its end; only a wait for a host
// function of a stream lets it go (launches.h).
//
// The process is one, and so is its lock: Clang's analysis then follows it from owner to owner, which it could not
// with a reference to the lock in each of them. simulated_process.h has the order of locks.
#pragma once

#include "base/locks.h"

// The lock is held, throughout.
#define CACHALOT_LOCKED CACHALOT_REQUIRES(process_mutex)
#define CACHALOT_UNDER_LOCK CACHALOT_GUARDED_BY(process_mutex)
// The analysis believes from the call on that the lock is held.
#define CACHALOT_KNOWN_LOCKED CACHALOT_THREAD_ANNOTATION(assert_capability(process_mutex))

namespace cachalot::simulator {

inline constinit Mutex process_mutex;

// For a function that the analysis cannot see the lock of, as one that is called through a template or std::function.
inline void know_locked() CACHALOT_KNOWN_LOCKED {}

}  // namespace cachalot::simulator
