// The pinned host memory of the process, behind torch's host allocator and CuPy's.
#pragma once

#include <atomic>
#include <cstddef>
#include <mutex>
#include <vector>

#include "base/fork_aware.h"
#include "cachalot/pinned_host_allocator.h"
#include "pytorch/host_plug.h"
#include "pytorch/host_pools.h"

namespace cachalot {

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

  // Limits the bytes that are pinned, from now on or, before the first use, from then on. Throws as
  // PinnedHostAllocator::set_limit.
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
