// Which buffers of pinned memory a captured graph may use.
#pragma once

#include <atomic>
#include <cstddef>
#include <map>
#include <mutex>
#include <new>
#include <vector>

#include "cachalot/pool_id.h"

namespace cachalot {

// HostPools remember the buffers of private pools. A copy in a graph is no work that an event could mark: it is done with
// each replay. So a buffer that a stream has used stays as it is, when it was freed, until its pool has no users.
// Thread-safe.
class HostPools {
 public:
  // Remembers a new buffer of the pool.
  void add(void* buffer, PoolId pool);
  // Notes that a stream uses the buffer. Ignores buffers of no private pool.
  void use(void* buffer);
  // Returns true if the buffer, which its owner frees, must stay. Forgets it otherwise.
  bool keep(void* buffer);
  // Forgets the pool, which has no users, and returns the buffers that were kept.
  std::vector<void*> release(PoolId pool);

  // In a forked child: another thread may have held the mutex.
  void on_fork() noexcept { new (&mutex_) std::mutex; }

 private:
  struct Buffer {
    PoolId pool;
    bool is_used = false;
    bool is_freed = false;
  };

  std::atomic<std::size_t> count_{0};  // spares frees the mutex while no graph was captured
  std::mutex mutex_;
  std::map<void*, Buffer> buffers_;
};

}  // namespace cachalot
