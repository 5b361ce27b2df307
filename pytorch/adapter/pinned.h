// cachalot's pinned memory as torch's host allocator: the functions of at::HostAllocator that are the same in torch 2.10
// to 2.15, and what came with 2.14: history, and segments and traces for snapshots.
//
// Contracts that torch's callers rely on (ATen/core/CachingHostAllocator.h): the deleter is a plain function that gets the
// context, so the object it needs is global, and leaked; record_event gets any pointer of a CPU tensor that takes part in a
// copy, with its storage's context, and returns false where the memory is not the allocator's. Here the context of a buffer
// is the buffer, as the storage's first byte, so that views are found by it.
// Thread-safe, like what it replaces.
#pragma once

#include <ATen/core/CachingHostAllocator.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/version.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "adapter/conversions.h"
#include "host_plug.h"

namespace cachalot::torch_adapter {

inline c10::CachingAllocator::DurationStat to_torch(const CallTimes& calls) {
  c10::CachingAllocator::DurationStat result;
  result.total = calls.total_us;
  result.max = calls.max_us;
  result.min = calls.min_us;
  result.count = calls.count;
  return result;
}

// An allocation of torch's is a segment here, a request is a block.
inline at::HostStats to_torch(const PinnedStats& stats) {
  at::HostStats result;
  result.active_requests = to_torch(stats.memory.active.all);
  result.active_bytes = to_torch(stats.memory.active_bytes.all);
  result.allocations = to_torch(stats.memory.segment.all);
  result.allocated_bytes = to_torch(stats.memory.reserved_bytes.all);
  result.host_alloc_time = to_torch(stats.times.pin);
  result.host_free_time = to_torch(stats.times.unpin);
  result.num_host_alloc = stats.memory.segment.all.allocated;
  result.num_host_free = stats.memory.segment.all.freed;
  result.bucket_allocation.assign(stats.times.pins_by_size.begin(), stats.times.pins_by_size.end());
  return result;
}

// Returns the device whose context pins: a GPU that has one already, as in torch's own allocator, or the current one.
inline int device_that_pins() {
  if (const auto device = c10::cuda::getDeviceIndexWithPrimaryContext()) return *device;
  return c10::cuda::current_device();
}

class PinnedAllocator : public at::HostAllocator {
 public:
  static PinnedAllocator* the_one;
  // Memory of `former` stays with it. Both live until the process ends.
  PinnedAllocator(HostPlug& plug, at::HostAllocator& former) : plug_(plug), former_(former) {}

  // --- Allocator ---

  c10::DataPtr allocate(std::size_t bytes) override {
    void* buffer = nullptr;
    if (bytes != 0) buffer = as_torch([&] { return plug_.allocate(bytes, pool_here(), through()); });
    return {buffer, buffer, &free_buffer, c10::DeviceType::CPU};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &free_buffer; }
  void copy_data(void* dest, const void* src, std::size_t count) const override { std::memcpy(dest, src, count); }

  // --- HostAllocator ---

  bool record_event(void* ptr, void* context, c10::Stream stream) override {
    const cudaStream_t cuda_stream = c10::cuda::CUDAStream(stream);
    const auto record = [&](void* buffer) { return plug_.record_stream(buffer, cuda_stream); };
    if (as_torch([&] { return record(context) || (ptr != context && record(ptr)); })) return true;
    return former_.record_event(ptr, context, stream);
  }

  void empty_cache() override {
    as_torch([&] { plug_.empty_cache(); });
    former_.empty_cache();
  }
  at::HostStats get_stats() override {
    return as_torch([&] { return to_torch(plug_.stats()); });
  }
  void reset_accumulated_stats() override { plug_.reset_accumulated_stats(); }
  void reset_peak_stats() override { plug_.reset_peak_stats(); }

  // Virtual since torch 2.11, which redirects a capture's pinned memory into the graph's pool.
  void begin_allocate_to_pool(c10::MempoolId_t pool, std::function<bool(c10::Stream)> filter) {
    as_torch([&] { plug_.begin_allocate_to_pool(to_pool_id(pool), through()); });
    const std::lock_guard<std::mutex> lock(mutex_);
    redirections_.push_back({pool, std::move(filter)});
    redirection_count_.store(redirections_.size());
  }
  void end_allocate_to_pool(c10::MempoolId_t pool) {
    if (!forget_redirection(pool)) return former([&](auto& other) { other.end_allocate_to_pool(pool); });
    as_torch([&] { plug_.end_allocate_to_pool(to_pool_id(pool)); });
  }
  void release_pool(c10::MempoolId_t pool) {
    if (plug_.pool_use_count(to_pool_id(pool)) == 0) return former([&](auto& other) { other.release_pool(pool); });
    as_torch([&] { plug_.release_pool(to_pool_id(pool)); });
  }

 protected:
  // The GPU that pins: chosen once, since only the heap's making needs it, and CUDA is asked for it.
  int through() {
    const int known = through_.load(std::memory_order_relaxed);
    if (known >= 0) return known;
    const int chosen = device_that_pins();
    through_.store(chosen, std::memory_order_relaxed);
    return chosen;
  }

  HostPlug& plug_;

 private:
  struct Redirection {
    c10::MempoolId_t pool;
    std::function<bool(c10::Stream)> filter;
  };

  static void free_buffer(void* buffer) { the_one->plug_.deallocate(buffer); }

  // The pool that the current stream's memory is redirected into; the default one.
  PoolId pool_here() {
    if (redirection_count_.load(std::memory_order_relaxed) == 0) return {};
    const c10::Stream stream = c10::cuda::getCurrentCUDAStream();
    const std::lock_guard<std::mutex> lock(mutex_);
    for (const Redirection& each : redirections_) {
      if (each.filter(stream)) return to_pool_id(each.pool);
    }
    return {};
  }

  bool forget_redirection(c10::MempoolId_t pool) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const std::size_t count = std::erase_if(redirections_, [&](const Redirection& each) { return each.pool == pool; });
    redirection_count_.store(redirections_.size());
    return count > 0;
  }

  // Pools that were begun before the change are the former allocator's. A template: torch until 2.10 has none.
  template <typename Call, typename Other = at::HostAllocator>
  void former(Call call) {
    if constexpr (requires(Other & other) { other.release_pool({}); }) call(static_cast<Other&>(former_));
  }

  at::HostAllocator& former_;
  std::atomic<int> through_{-1};
  std::atomic<std::size_t> redirection_count_{0};
  std::mutex mutex_;  // held while a filter asks CUDA whether a stream captures
  std::vector<Redirection> redirections_;
};

inline PinnedAllocator* PinnedAllocator::the_one = nullptr;

#if TORCH_VERSION_MINOR >= 14
// The device of entries about the host, in torch's traces.
inline constexpr c10::DeviceIndex kHost = -1;

// Host memory that programs pin themselves (torch.cuda.cudart().cudaHostRegister), in the history of pinned memory.
//
// ExternalPins are the ranges that torch reports while history is recorded, each as a segment of one block. Thread-safe; a
// recorder of contexts, which may take the GIL, runs without the lock.
class ExternalPins {
 public:
  using RecordContext = c10::CachingDeviceAllocator::RecordContext;
  using Recorder = c10::CachingDeviceAllocator::CreateContextFn;

  // Starts or ends the recording.
  void record(bool enabled, Recorder recorder, std::size_t max_entries, RecordContext when, bool clear) {
    const std::lock_guard<std::mutex> lock(mutex_);
    enabled_ = enabled;
    when_ = enabled ? when : RecordContext::NEVER;
    recorder_ = recorder;
    max_entries_ = max_entries;
    if (clear) trace_.clear();
    trim();
  }

  void add(void* memory, std::size_t bytes) {
    const auto context = context_at(RecordContext::STATE);
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!enabled_) return;
    ranges_[memory] = {bytes, context};
    tell(TraceEntry::SEGMENT_ALLOC, memory, bytes, nullptr);
    tell(TraceEntry::ALLOC, memory, bytes, context);
  }

  // Ignores what was not added.
  void remove(void* memory) {
    const auto context = context_at(RecordContext::ALL);
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto found = ranges_.find(memory);
    if (found == ranges_.end()) return;
    const Range range = found->second;
    ranges_.erase(found);
    if (!enabled_) return;
    tell(TraceEntry::FREE_REQUESTED, memory, range.bytes, context);
    tell(TraceEntry::FREE_COMPLETED, memory, range.bytes, range.context);
    tell(TraceEntry::SEGMENT_FREE, memory, range.bytes, nullptr);
  }

  void add_segments(std::vector<at::HostSegmentInfo>& segments) const {
    const std::lock_guard<std::mutex> lock(mutex_);
    for (const auto& [memory, range] : ranges_) {
      at::HostSegmentInfo info;
      info.address = reinterpret_cast<std::size_t>(memory);
      info.size = range.bytes;
      info.allocated = info.active = true;
      info.context_when_allocated = range.context;
      segments.push_back(std::move(info));
    }
  }

  // Adds the entries to a trace in the order of time.
  void add_traces(std::vector<TraceEntry>& trace) const {
    const std::lock_guard<std::mutex> lock(mutex_);
    trace.insert(trace.end(), trace_.begin(), trace_.end());
    std::stable_sort(trace.begin(), trace.end(),
                     [](const TraceEntry& a, const TraceEntry& b) { return a.time_.t_ < b.time_.t_; });
  }

 private:
  struct Range {
    std::size_t bytes = 0;
    std::shared_ptr<c10::GatheredContext> context;
  };

  std::shared_ptr<c10::GatheredContext> context_at(RecordContext level) const {
    std::unique_lock<std::mutex> lock(mutex_);
    if (when_ < level || recorder_ == nullptr) return nullptr;
    const Recorder recorder = recorder_;
    lock.unlock();
    return recorder();
  }

  void tell(TraceEntry::Action action, void* memory, std::size_t bytes, std::shared_ptr<c10::GatheredContext> context) {
    TraceEntry entry(action, kHost, reinterpret_cast<std::size_t>(memory), bytes, nullptr, c10::MempoolId_t{0, 0},
                     c10::getApproximateTime(), std::move(context));
    using Microseconds = std::chrono::microseconds;
    const auto now = std::chrono::system_clock::now().time_since_epoch();
    entry.time_.t_ = std::chrono::duration_cast<Microseconds>(now).count();
    trace_.push_back(std::move(entry));
    trim();
  }
  void trim() {
    while (trace_.size() > max_entries_) trace_.pop_front();
  }

  mutable std::mutex mutex_;
  bool enabled_ = false;
  RecordContext when_ = RecordContext::NEVER;
  Recorder recorder_ = nullptr;
  std::size_t max_entries_ = 1;
  std::map<void*, Range> ranges_;
  std::deque<TraceEntry> trace_;
};

class PinnedAllocatorSince2_14 final : public PinnedAllocator {
 public:
  using PinnedAllocator::PinnedAllocator;

  void record_history(bool enabled, c10::CachingDeviceAllocator::CreateContextFn recorder, std::size_t max_entries,
                      c10::CachingDeviceAllocator::RecordContext when, bool clear) override {
    max_entries = std::max<std::size_t>(max_entries, 1);
    HistoryOptions history;
    history.enabled = enabled;
    history.max_entries = max_entries;
    history.contexts = to_contexts(when);
    if (recorder != nullptr) history.recorder = [recorder] { return Context(recorder()); };
    history.clear = clear;
    as_torch([&] { plug_.record_history(history, through()); });
    external_.record(enabled, recorder, max_entries, when, clear);
  }
  bool is_history_enabled() const override { return plug_.history_enabled(); }

  // torch's form has an address, a size and a state, so each block is an entry: together they tile the segments.
  std::vector<at::HostSegmentInfo> get_segments() override {
    const Snapshot taken = as_torch([&] { return plug_.snapshot(); });
    std::vector<at::HostSegmentInfo> result;
    for (const SegmentSnapshot& segment : taken.segments) {
      for (const BlockSnapshot& block : segment.blocks) result.push_back(to_torch_host(segment, block));
    }
    external_.add_segments(result);
    return result;
  }

  std::vector<TraceEntry> get_traces() override {
    const Snapshot taken = as_torch([&] { return plug_.snapshot(); });
    std::vector<TraceEntry> result;
    for (const std::vector<Change>& trace : taken.device_traces) result = to_torch(trace);
    for (TraceEntry& entry : result) entry.device_ = kHost;
    external_.add_traces(result);
    return result;
  }

  void record_external_register(void* memory, std::size_t bytes) override { external_.add(memory, bytes); }
  void record_external_unregister(void* memory) override { external_.remove(memory); }

 private:
  static at::HostSegmentInfo to_torch_host(const SegmentSnapshot& segment, const BlockSnapshot& block) {
    at::HostSegmentInfo info;
    info.address = block.address;
    info.size = block.size;
    info.allocated = block.state == BlockSnapshot::State::active_allocated;
    info.active = block.state != BlockSnapshot::State::inactive;
    info.owner_private_pool_id = to_torch(segment.segment_pool_id);
    info.context_when_allocated = to_torch(block.context);
    return info;
  }

  ExternalPins external_;
};
#endif

// Makes cachalot torch's host allocator, as an object of the class `Allocator`. torch replaces it only by one with the same or a
// higher priority; its own has 0.
template <typename Allocator>
void install_pinned() {
  constexpr std::uint8_t kPriority = 1;
  HostPlug* const plug = cachalot_host_plug(kHostPlugVersion);
  TORCH_CHECK(plug != nullptr, "libcachalot_torch.so is of another version than its adapter");
  TORCH_CHECK(PinnedAllocator::the_one == nullptr, "cachalot is torch's host allocator already");
  at::HostAllocator* const former = at::getHostAllocator(at::kCUDA);
  auto* const allocator = new Allocator(*plug, *former);  // permanent: tensors die after static objects
  at::setHostAllocator(at::kCUDA, allocator, kPriority);
  if (at::getHostAllocator(at::kCUDA) != allocator) {
    delete allocator;
    TORCH_CHECK(false,
                "another host allocator with a higher priority is set (at::setHostAllocator); do without pinned=True");
  }
  PinnedAllocator::the_one = allocator;
}

}  // namespace cachalot::torch_adapter
