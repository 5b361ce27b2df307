// The pinned host memory of the process, behind torch's host allocator (host_plug.h) and CuPy's; for ctypes, what CuPy's pinned
// allocator and the Python package ask for.
//
// Codes and texts: hooks.h. Thread-safe.
#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <optional>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/process.h"
#include "c_api/last_error.h"
#include "cachalot/device.h"
#include "cachalot/pinned_host_allocator.h"
#include "pytorch/plug/hooks.h"
#include "pytorch/plug/host_plug.h"
#include "pytorch/plug/process_allocator.h"
#include "pytorch/plug/python_api.h"

namespace cachalot {
namespace {

// The buffers of pinned memory that a captured graph may use.
//
// HostPools remember the buffers of private pools. A copy in a graph is not work that an event could mark: it is done with
// each replay. So a buffer that a stream has used stays as it is, when it was freed, until its pool has no users.
// Thread-safe.
class HostPools {
 public:
  // Remembers a new buffer of the pool.
  void add(void* buffer, PoolId pool) {
    const std::lock_guard<std::mutex> lock(mutex_);
    buffers_[buffer] = {.pool = pool};
    count_.store(buffers_.size());
  }
  // Notes that a stream uses the buffer. Ignores buffers of no private pool.
  void use(void* buffer) {
    if (count_.load() == 0) return;
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto found = buffers_.find(buffer);
    if (found != buffers_.end()) found->second.is_used = true;
  }
  // Returns true if the buffer, which its owner frees, must stay. Forgets it otherwise.
  bool keep(void* buffer) {
    if (count_.load() == 0) return false;
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto found = buffers_.find(buffer);
    if (found == buffers_.end()) return false;
    if (found->second.is_used) return found->second.is_freed = true;
    buffers_.erase(found);
    count_.store(buffers_.size());
    return false;
  }
  // Forgets the pool, which has no users, and returns the buffers that were kept.
  std::vector<void*> release(PoolId pool) {
    const std::lock_guard<std::mutex> lock(mutex_);
    std::vector<void*> kept;
    std::erase_if(buffers_, [&](const auto& entry) {
      const auto& [buffer, state] = entry;
      if (state.pool == pool && state.is_freed) kept.push_back(buffer);
      return state.pool == pool;
    });
    count_.store(buffers_.size());
    return kept;
  }

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

// The private pool that this thread allocates from.
thread_local std::optional<PoolId> pool_of_thread;

struct InPool {
  explicit InPool(PoolId pool) { pool_of_thread = pool; }
  ~InPool() { pool_of_thread.reset(); }
  InPool(const InPool&) = delete;
  InPool& operator=(const InPool&) = delete;
};

// Made at first use and never destroyed: tensors may outlive static objects. While the heap cannot be made (no device), each
// call tries again and throws the reason.
class HostMemory final : public HostPlug, public ForkAware {
 public:
  static HostMemory& instance() {
    static HostMemory& memory = *new HostMemory;
    return memory;
  }

  void* allocate(std::size_t bytes, PoolId pool, int through) override {
    PinnedHostAllocator& host = heap(through);
    free_late_ones();
    if (pool.is_default()) return host.allocate(bytes);
    const InPool in_pool(pool);
    void* const buffer = host.allocate(bytes);
    pools_.add(buffer, pool);
    return buffer;
  }
  void deallocate(void* buffer) noexcept override {
    if (buffer == nullptr || made() == nullptr || made()->cache().is_inherited()) return;
    if (!pools_.keep(buffer)) try_to_free(buffer);
  }
  bool record_stream(void* buffer, Stream stream) override {
    PinnedHostAllocator* const heap = made();
    if (heap == nullptr || buffer == nullptr || heap->cache().is_inherited()) return false;
    if (heap->cache().device_of(buffer) < 0) return false;
    heap->record_stream(buffer, stream);
    pools_.use(buffer);
    return true;
  }

  void begin_allocate_to_pool(PoolId pool, int through) override {
    heap(through).cache().begin_allocate_to_pool(
        0, pool, [pool](Stream) { return pool_of_thread == pool; }, RedirectFor::capture);
  }
  void end_allocate_to_pool(PoolId pool) override { required().cache().end_allocate_to_pool(0, pool); }
  void release_pool(PoolId pool) override {
    PinnedHostAllocator& host = required();
    host.cache().release_pool(0, pool);
    if (host.cache().is_inherited() || host.cache().pool_use_count(0, pool) > 0) return;
    for (void* const buffer : pools_.release(pool)) try_to_free(buffer);
  }
  int pool_use_count(PoolId pool) const override {
    PinnedHostAllocator* const heap = made();
    return heap == nullptr || heap->cache().is_inherited() ? 0 : heap->cache().pool_use_count(0, pool);
  }

  void empty_cache() override {
    if (made() == nullptr) return;
    free_late_ones();
    made()->empty_cache();
  }
  PinnedStats stats() const override {
    if (made() == nullptr) return {};
    return {made()->memory_stats(), made()->pin_times()};
  }
  void reset_accumulated_stats() override {
    if (made() != nullptr) made()->reset_accumulated_stats();
  }
  void reset_peak_stats() override {
    if (made() != nullptr) made()->reset_peak_stats();
  }

  void record_history(HistoryOptions history, int through) override {
    if (!history.enabled && made() == nullptr) return;
    history.recorder = keeping_exceptions(std::move(history.recorder), true);
    heap(through).cache().record_history(history);
  }
  bool history_enabled() const override { return made() != nullptr && made()->cache().history_enabled(); }
  Snapshot snapshot() const override { return made() == nullptr ? Snapshot{} : made()->cache().snapshot(); }

  // Limits the bytes that are pinned, from now on or, before the first use, from then on. If more is pinned now, buffers that
  // are not in use go back, which waits for streams. Throws as PinnedHostAllocator::set_limit does.
  void set_limit(std::size_t bytes) {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      if (made() == nullptr) {
        CACHALOT_REQUIRE(bytes >= PinnedHostAllocator::kMinLimit,
                         "a limit of {} bytes of pinned memory: it must be at least 2 MiB, one segment", bytes);
        limit_.store(bytes);
        return;
      }
    }
    made()->set_limit(bytes);
    if (made()->memory_reserved() > bytes) empty_cache();
  }
  // The limit; Options::kUnlimited without one.
  std::size_t limit() const {
    if (made() != nullptr) return made()->limit();
    const std::size_t given = limit_.load();
    const std::size_t limit = given != 0 ? given : Process::instance().pinned_limit();
    return limit != 0 ? limit : Options::kUnlimited;
  }

 private:
  HostMemory() = default;
  // A thread that is not here may have held them.
  void on_fork() noexcept override {
    new (&mutex_) std::mutex;
    new (&late_mutex_) std::mutex;
    pools_.on_fork();
  }

  // Null before the first use.
  PinnedHostAllocator* made() const { return heap_.load(std::memory_order_acquire); }
  PinnedHostAllocator& heap(int through) {
    PinnedHostAllocator* const heap = made();
    return heap != nullptr ? *heap : make(through);
  }
  PinnedHostAllocator& make(int through) {
    const std::size_t limit_of_options = Process::instance().pinned_limit();
    const std::lock_guard<std::mutex> lock(mutex_);
    if (PinnedHostAllocator* const heap = made()) return *heap;
    const std::vector<std::shared_ptr<Device>> devices = cuda_devices();
    CACHALOT_REQUIRE(through >= 0 && static_cast<std::size_t>(through) < devices.size(),
                     "device {} cannot pin memory: there are {} CUDA devices", through, devices.size());
    Options options;
    options.immortal_streams = true;  // torch's and CuPy's streams live as long as the process
    const std::size_t given = limit_.load();
    options.pinned_limit = given != 0 ? given : limit_of_options;
    auto heap = std::make_unique<PinnedHostAllocator>(devices[static_cast<std::size_t>(through)], options);
    heap_.store(heap.get(), std::memory_order_release);
    return *heap.release();
  }
  // Throws InvalidArgument where there is none.
  PinnedHostAllocator& required() const {
    PinnedHostAllocator* const heap = made();
    CACHALOT_REQUIRE(heap != nullptr, "there are {} private pools of pinned memory", 0);
    return *heap;
  }

  // Destructors of tensors must not throw.
  void try_to_free(void* buffer) noexcept {
    try {
      made()->deallocate(buffer);
    } catch (...) {
      const std::lock_guard<std::mutex> lock(late_mutex_);
      late_.push_back(buffer);
      has_late_.store(true);
    }
  }
  void free_late_ones() noexcept {
    if (!has_late_.load(std::memory_order_relaxed)) return;
    std::vector<void*> late;
    {
      const std::lock_guard<std::mutex> lock(late_mutex_);
      late.swap(late_);
      has_late_.store(false);
    }
    for (void* const buffer : late) try_to_free(buffer);
  }

  std::mutex mutex_;  // held while the heap is made or limited
  std::atomic<PinnedHostAllocator*> heap_{nullptr};
  std::atomic<std::size_t> limit_{0};  // of set_limit before the heap was made; 0: the option pinned_limit

  HostPools pools_;
  std::mutex late_mutex_;
  std::atomic<bool> has_late_{false};
  std::vector<void*> late_;  // freed while a stream that uses them captured
};

}  // namespace
}  // namespace cachalot

using namespace cachalot;  // NOLINT(google-*): what follows are functions of C

extern "C" {

// Returns at least `bytes` bytes of pinned memory; null for 0 bytes, which is not a failure, and on failure: cachalot_last_error() tells.
// The first call of the process pins through GPU `device`.
CACHALOT_EXPORT void* cachalot_pinned_malloc(std::size_t bytes, int device) {
  if (bytes == 0) return nullptr;
  return value_or<void*>(nullptr, [&] { return HostMemory::instance().allocate(bytes, {}, device); });
}

// Frees a buffer of cachalot_pinned_malloc. All work that uses the buffer is done, or on streams that were recorded.
// Null is ignored.
CACHALOT_EXPORT void cachalot_pinned_free(void* buffer) { HostMemory::instance().deallocate(buffer); }

// Work on `stream` (cudaStream_t) uses the buffer. Anything but a live buffer is the caller's mistake.
CACHALOT_EXPORT int cachalot_plug_pinned_record_stream(void* buffer, void* stream) {
  return guarded([&] {
    const bool is_live = HostMemory::instance().record_stream(buffer, static_cast<Stream>(stream));
    CACHALOT_REQUIRE(is_live, "{} is not a live buffer of pinned memory", static_cast<const void*>(buffer));
  });
}

CACHALOT_EXPORT int cachalot_plug_pinned_empty_cache() {
  return guarded([] { HostMemory::instance().empty_cache(); });
}

// The most bytes that are pinned from now on; 0: no limit. If more is pinned, buffers that are not in use go back.
CACHALOT_EXPORT int cachalot_plug_pinned_set_limit(std::size_t bytes) {
  return guarded([&] { HostMemory::instance().set_limit(bytes == 0 ? Options::kUnlimited : bytes); });
}

// {"limit_bytes": …, "stats": to_json(DeviceStats)}; limit_bytes is 0 without one.
CACHALOT_EXPORT char* cachalot_plug_pinned_json() {
  return text_or_null([] {
    const HostMemory& memory = HostMemory::instance();
    const std::size_t limit = memory.limit();
    return formatted("{{\"limit_bytes\": {}, \"stats\": {}}}", limit == Options::kUnlimited ? 0 : limit,
                     to_json(memory.stats().memory));
  });
}
}

cachalot::HostPlug* cachalot_host_plug(int version) {
  return version == cachalot::kHostPlugVersion ? &cachalot::HostMemory::instance() : nullptr;
}
