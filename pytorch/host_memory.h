// The pinned host memory of the process, behind torch's host allocator and CuPy's.
#pragma once

#include <atomic>
#include <cstddef>
#include <map>
#include <mutex>
#include <new>
#include <vector>

#include "base/process.h"
#include "cachalot/pinned_host_allocator.h"
#include "cachalot/pool_id.h"
#include "pytorch/host_plug.h"

namespace cachalot {

// Which buffers of pinned memory a captured graph may use.
//
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

// Made at first use and never destroyed: tensors may outlive static objects. While the heap cannot be made (no device), each
// call tries again and throws the reason.
class HostMemory final : public HostPlug, public ForkAware {
 public:
  static HostMemory& instance();

  void* allocate(std::size_t bytes, PoolId pool, int through) override;
  void deallocate(void* buffer) noexcept override;
  bool record_stream(void* buffer, Stream stream) override;

  void begin_allocate_to_pool(PoolId pool, int through) override;
  void end_allocate_to_pool(PoolId pool) override;
  void release_pool(PoolId pool) override;
  int pool_use_count(PoolId pool) const override;

  void empty_cache() override;
  PinnedStats stats() const override;
  void reset_accumulated_stats() override;
  void reset_peak_stats() override;

  void record_history(HistoryOptions history, int through) override;
  bool history_enabled() const override;
  Snapshot snapshot() const override;

  // Limits the bytes that are pinned, from now on or, before the first use, from then on. If more is pinned now, buffers that
  // are not in use go back, which waits for streams. Throws as PinnedHostAllocator::set_limit.
  void set_limit(std::size_t bytes);
  // The limit; Options::kUnlimited without one.
  std::size_t limit() const;

 private:
  HostMemory() = default;
  void on_fork() noexcept override;

  // Null before the first use.
  PinnedHostAllocator* made() const { return heap_.load(std::memory_order_acquire); }
  PinnedHostAllocator& heap(int through) {
    PinnedHostAllocator* const heap = made();
    return heap != nullptr ? *heap : make(through);
  }
  PinnedHostAllocator& make(int through);
  PinnedHostAllocator& required() const;  // InvalidArgument where there is none

  void try_to_free(void* buffer) noexcept;
  void free_late_ones() noexcept;

  std::mutex mutex_;  // held while the heap is made or limited
  std::atomic<PinnedHostAllocator*> heap_{nullptr};
  std::atomic<std::size_t> limit_{0};  // of set_limit before the heap was made; 0: the option pinned_limit

  HostPools pools_;
  std::mutex late_mutex_;
  std::atomic<bool> has_late_{false};
  std::vector<void*> late_;  // freed while a stream that uses them captured
};

}  // namespace cachalot
