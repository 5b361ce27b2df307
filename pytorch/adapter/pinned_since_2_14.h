// What torch 2.14 asks of a host allocator beyond 2.13: history, and segments and traces for snapshots.
#pragma once

#include <ATen/core/CachingHostAllocator.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "adapter/conversions.h"
#include "adapter/pinned.h"

namespace cachalot::torch_adapter {

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

}  // namespace cachalot::torch_adapter
