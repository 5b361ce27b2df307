// Remarks from outside the allocator (torch's record_function), kept beside the trace while history is recorded.
#pragma once

#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>

#include <chrono>
#include <deque>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

namespace cachalot::torch_adapter {

// The last ones, as many as the trace keeps changes. Thread-safe.
class ExternalAnnotations {
 public:
  using Entries = decltype(c10::cuda::CUDACachingAllocator::SnapshotInfo::external_annotations);  // a vector
  using Entry = Entries::value_type;

  void configure(bool enabled, std::size_t max_entries, bool clear) {
    const std::lock_guard<std::mutex> lock(mutex_);
    enabled_ = enabled;
    max_entries_ = max_entries;
    if (!enabled || clear) entries_.clear();
    while (entries_.size() > max_entries_) entries_.pop_front();
  }

  void record(const std::vector<std::pair<std::string, std::string>>& values) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!enabled_) return;
    if (entries_.size() == max_entries_) entries_.pop_front();
    Entry& entry = entries_.emplace_back(c10::cuda::current_device(), 0);
    for (const auto& [key, value] : values) entry.recordUserMetadata(key, value);
    using std::chrono::microseconds;
    entry.time_.t_ =
        std::chrono::duration_cast<microseconds>(std::chrono::system_clock::now().time_since_epoch()).count();
  }

  Entries entries() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    return {entries_.begin(), entries_.end()};
  }

 private:
  mutable std::mutex mutex_;
  bool enabled_ = false;
  std::size_t max_entries_ = 1;
  std::deque<Entry> entries_;
};

}  // namespace cachalot::torch_adapter
