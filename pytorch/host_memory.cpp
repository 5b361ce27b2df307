#include "pytorch/host_memory.h"

#include <algorithm>
#include <memory>
#include <new>
#include <optional>
#include <utility>

#include "base/check.h"
#include "pytorch/process.h"
#include "pytorch/python_api.h"

namespace cachalot {

void HostPools::add(void* buffer, PoolId pool) {
  const std::lock_guard<std::mutex> lock(mutex_);
  buffers_[buffer] = {.pool = pool};
  count_.store(buffers_.size());
}

void HostPools::use(void* buffer) {
  if (count_.load() == 0) return;
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto found = buffers_.find(buffer);
  if (found != buffers_.end()) found->second.is_used = true;
}

bool HostPools::keep(void* buffer) {
  if (count_.load() == 0) return false;
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto found = buffers_.find(buffer);
  if (found == buffers_.end()) return false;
  if (found->second.is_used) return found->second.is_freed = true;
  buffers_.erase(found);
  count_.store(buffers_.size());
  return false;
}

std::vector<void*> HostPools::release(PoolId pool) {
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

namespace {

// The private pool that this thread allocates from.
thread_local std::optional<PoolId> pool_of_thread;

struct InPool {
  explicit InPool(PoolId pool) { pool_of_thread = pool; }
  ~InPool() { pool_of_thread.reset(); }
  InPool(const InPool&) = delete;
  InPool& operator=(const InPool&) = delete;
};

}  // namespace

HostMemory& HostMemory::instance() {
  static HostMemory& memory = *new HostMemory;
  return memory;
}

// A thread that is not here may have held them.
void HostMemory::on_fork() noexcept {
  new (&mutex_) std::mutex;
  new (&late_mutex_) std::mutex;
  pools_.on_fork();
}

PinnedHostAllocator& HostMemory::make(int through) {
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

PinnedHostAllocator& HostMemory::required() const {
  PinnedHostAllocator* const heap = made();
  CACHALOT_REQUIRE(heap != nullptr, "there are {} private pools of pinned memory", 0);
  return *heap;
}

void* HostMemory::allocate(std::size_t bytes, PoolId pool, int through) {
  PinnedHostAllocator& host = heap(through);
  free_late_ones();
  if (pool.is_default()) return host.allocate(bytes);
  const InPool in_pool(pool);
  void* const buffer = host.allocate(bytes);
  pools_.add(buffer, pool);
  return buffer;
}

void HostMemory::deallocate(void* buffer) noexcept {
  if (buffer == nullptr || made() == nullptr || made()->cache().is_inherited()) return;
  if (!pools_.keep(buffer)) try_to_free(buffer);
}

// Destructors of tensors must not throw.
void HostMemory::try_to_free(void* buffer) noexcept {
  try {
    made()->deallocate(buffer);
  } catch (...) {
    const std::lock_guard<std::mutex> lock(late_mutex_);
    late_.push_back(buffer);
    has_late_.store(true);
  }
}

void HostMemory::free_late_ones() noexcept {
  if (!has_late_.load(std::memory_order_relaxed)) return;
  std::vector<void*> late;
  {
    const std::lock_guard<std::mutex> lock(late_mutex_);
    late.swap(late_);
    has_late_.store(false);
  }
  for (void* const buffer : late) try_to_free(buffer);
}

bool HostMemory::record_stream(void* buffer, Stream stream) {
  PinnedHostAllocator* const heap = made();
  if (heap == nullptr || buffer == nullptr || heap->cache().is_inherited()) return false;
  if (heap->cache().device_of(buffer) < 0) return false;
  heap->record_stream(buffer, stream);
  pools_.use(buffer);
  return true;
}

void HostMemory::begin_allocate_to_pool(PoolId pool, int through) {
  heap(through).cache().begin_allocate_to_pool(
      0, pool, [pool](Stream) { return pool_of_thread == pool; }, RedirectFor::capture);
}

void HostMemory::end_allocate_to_pool(PoolId pool) { required().cache().end_allocate_to_pool(0, pool); }

void HostMemory::release_pool(PoolId pool) {
  PinnedHostAllocator& host = required();
  host.cache().release_pool(0, pool);
  if (host.cache().is_inherited() || host.cache().pool_use_count(0, pool) > 0) return;
  for (void* const buffer : pools_.release(pool)) try_to_free(buffer);
}

int HostMemory::pool_use_count(PoolId pool) const {
  PinnedHostAllocator* const heap = made();
  return heap == nullptr || heap->cache().is_inherited() ? 0 : heap->cache().pool_use_count(0, pool);
}

void HostMemory::empty_cache() {
  if (made() == nullptr) return;
  free_late_ones();
  made()->empty_cache();
}

PinnedStats HostMemory::stats() const {
  if (made() == nullptr) return {};
  return {made()->memory_stats(), made()->pin_times()};
}

void HostMemory::reset_accumulated_stats() {
  if (made() != nullptr) made()->reset_accumulated_stats();
}

void HostMemory::reset_peak_stats() {
  if (made() != nullptr) made()->reset_peak_stats();
}

void HostMemory::record_history(HistoryOptions history, int through) {
  if (!history.enabled && made() == nullptr) return;
  history.recorder = keeping_exceptions(std::move(history.recorder), true);
  heap(through).cache().record_history(history);
}

bool HostMemory::history_enabled() const { return made() != nullptr && made()->cache().history_enabled(); }

Snapshot HostMemory::snapshot() const { return made() == nullptr ? Snapshot{} : made()->cache().snapshot(); }

void HostMemory::set_limit(std::size_t bytes) {
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

std::size_t HostMemory::limit() const {
  if (made() != nullptr) return made()->limit();
  const std::size_t given = limit_.load();
  const std::size_t limit = given != 0 ? given : Process::instance().pinned_limit();
  return limit != 0 ? limit : Options::kUnlimited;
}

}  // namespace cachalot

cachalot::HostPlug* cachalot_host_plug(int version) {
  return version == cachalot::kHostPlugVersion ? &cachalot::HostMemory::instance() : nullptr;
}
