/// @file
/// The adaptor that writes a resource's calls to a file, in RMM's format.
#pragma once

#include "cachalot/require_cpp17.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <ctime>
#include <fstream>
#include <memory>
#include <mutex>
#include <ostream>
#include <string>
#include <utility>

#include "cachalot/errors.h"
#include "cachalot/resource_adaptor.h"

CACHALOT_BEGIN_API

/// A ResourceLog writes calls as lines of the CSV file of RMM's logging_resource_adaptor:
///
///     Thread,Time,Action,Pointer,Size,Stream
///     4711,14:03:27.518102,allocate,0x7f2c00000000,1048576,0
///     4711,14:03:27.518240,free,0x7f2c00000000,1048576,0
///     4711,14:03:27.518301,allocate failure,(nil),9223372036854775807,0
///
/// The time is the local time of day, the thread is Linux's number of the thread, and the stream is
/// its address; 0 is the legacy default stream, and that of calls without a stream.
/// Thread safety: every function may be called from any thread at any time.
class ResourceLog {
 public:
  /// Makes a log in the file, which is emptied.
  /// Throws InvalidArgument if it cannot be opened for writing.
  explicit ResourceLog(const std::string& file)
      : file_(std::make_unique<std::ofstream>(file)), out_(*file_) {
    if (!out_) throw InvalidArgument("the log file '" + file + "' cannot be opened for writing");
    write_header();
  }
  /// Makes a log in a stream of the program. Requires: `out` outlives the log.
  explicit ResourceLog(std::ostream& out) : out_(out) { write_header(); }

  /// Writes a line. A line that cannot be written is lost; is_good() is false from then on.
  void write(const char* action, const void* ptr, std::size_t bytes, Stream stream) noexcept {
    static thread_local const long thread = ::syscall(SYS_gettid);
    char time[32];
    write_time(time, sizeof(time));
    char where[32];
    std::snprintf(where, sizeof(where), ptr == nullptr ? "(nil)" : "%p", ptr);
    char line[160];
    const int length = std::snprintf(line, sizeof(line), "%ld,%s,%s,%s,%zu,%s%jx\n", thread, time,
                                     action, where, bytes, stream == nullptr ? "" : "0x",
                                     reinterpret_cast<std::uintmax_t>(stream));
    const std::lock_guard<std::mutex> lock(mutex_);
    try {
      out_.write(line, length);
    } catch (...) {  // the stream's own exceptions: its state tells
    }
  }
  /// Writes what is buffered. Returns is_good().
  bool flush() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return static_cast<bool>(out_.flush());
  }
  /// Returns false if a line was lost.
  bool is_good() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    return static_cast<bool>(out_);
  }

 private:
  void write_header() { out_ << "Thread,Time,Action,Pointer,Size,Stream\n"; }

  static void write_time(char* to, std::size_t capacity) noexcept {
    using std::chrono::microseconds;
    const auto now = std::chrono::system_clock::now();
    const std::time_t seconds = std::chrono::system_clock::to_time_t(now);
    const auto part = std::chrono::duration_cast<microseconds>(
                          now - std::chrono::system_clock::from_time_t(seconds)) %
                      std::chrono::seconds(1);
    std::tm local = {};
    ::localtime_r(&seconds, &local);
    std::snprintf(to, capacity, "%02d:%02d:%02d.%06ld", local.tm_hour, local.tm_min, local.tm_sec,
                  static_cast<long>(part.count()));
  }

  mutable std::mutex mutex_;
  std::unique_ptr<std::ofstream> file_;
  std::ostream& out_;
};

/// A LoggingAdaptor writes each call to a ResourceLog: allocations, frees, and allocations that
/// failed.
///
///     cachalot::LoggingAdaptor logged(resource, "calls.csv");
///
/// Errors are those of the upstream.
/// Thread safety: every function may be called from any thread at any time.
template <typename Upstream>
class LoggingAdaptor : public ResourceAdaptor<LoggingAdaptor<Upstream>, Upstream, ResourceLog> {
  using Base = ResourceAdaptor<LoggingAdaptor, Upstream, ResourceLog>;

 public:
  /// Makes an adaptor that writes to the file, which is emptied.
  /// Throws InvalidArgument if it cannot be opened for writing.
  LoggingAdaptor(Upstream upstream, const std::string& file)
      : Base(std::move(upstream), std::make_shared<ResourceLog>(file)) {}
  /// Makes an adaptor that writes to a stream of the program.
  /// Requires: `out` outlives the adaptor and its copies.
  LoggingAdaptor(Upstream upstream, std::ostream& out)
      : Base(std::move(upstream), std::make_shared<ResourceLog>(out)) {}

  /// Writes what is buffered. Returns false if a line was lost.
  bool flush() const { return this->state_->flush(); }
  /// Returns false if a line was lost.
  bool is_good() const { return this->state_->is_good(); }

 private:
  friend class ResourceCalls<LoggingAdaptor>;

  void* allocate_as(const ResourceRequest& request) const {
    void* ptr = nullptr;
    try {
      ptr = this->allocate_upstream(request);
    } catch (...) {
      this->state_->write("allocate failure", nullptr, request.bytes, request.stream);
      throw;
    }
    this->state_->write("allocate", ptr, request.bytes, request.stream);
    return ptr;
  }
  // Before the free: after it, another thread may have the pointer and write its line first.
  void deallocate_as(void* ptr, const ResourceRequest& request) const noexcept {
    this->state_->write("free", ptr, request.bytes, request.stream);
    this->deallocate_upstream(ptr, request);
  }
};

CACHALOT_END_API
