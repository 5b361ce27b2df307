// The notes of torch's users on a thread's allocations: the compile context and their metadata. Trace entries carry them.
#pragma once

#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>

#include <chrono>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "cachalot/events.h"

namespace cachalot::torch_adapter {

// Remarks from outside the allocator (torch's record_function), kept beside the trace while history is recorded.
//
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

inline constexpr const char* kNoCompileContext = "N/A";  // torch 2.11's text without one

struct Annotation {
  std::string compile_context = kNoCompileContext;
  std::string user_metadata;
};

// One a thread.
class Annotations {
 public:
  static Annotations& of_this_thread() {
    static thread_local Annotations annotations;
    return annotations;
  }

  void push_compile_context(std::string context) {
    compile_contexts_.push_back(std::move(context));
    current_.reset();
  }
  void pop_compile_context() {
    if (!compile_contexts_.empty()) compile_contexts_.pop_back();
    current_.reset();
  }
  void set_user_metadata(std::string metadata) {
    user_metadata_ = std::move(metadata);
    current_.reset();
  }
  const std::string& user_metadata() const { return user_metadata_; }

  // Returns a context as `current`, with this metadata instead of the thread's.
  Context current_with(std::string user_metadata) const {
    auto annotation = std::make_shared<Annotation>();
    if (!compile_contexts_.empty()) annotation->compile_context = compile_contexts_.back();
    annotation->user_metadata = std::move(user_metadata);
    return annotation;
  }

  // Null while the thread has said nothing. The value is shared by all changes until the thread says something else.
  Context current() {
    if (compile_contexts_.empty() && user_metadata_.empty()) return nullptr;
    if (!current_) {
      auto annotation = std::make_shared<Annotation>();
      if (!compile_contexts_.empty()) annotation->compile_context = compile_contexts_.back();
      annotation->user_metadata = user_metadata_;
      current_ = std::move(annotation);
    }
    return current_;
  }

 private:
  std::vector<std::string> compile_contexts_;
  std::string user_metadata_;
  std::shared_ptr<Annotation> current_;
};

}  // namespace cachalot::torch_adapter
