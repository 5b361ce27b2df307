/// @file
/// The adaptor that counts a resource's allocations, in scopes.
#pragma once

#include "cachalot/require_cpp17.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "cachalot/errors.h"
#include "cachalot/resource_adaptor.h"

CACHALOT_BEGIN_API

/// A ResourceCounter counts one quantity in a scope.
struct ResourceCounter {
  std::int64_t value = 0;  ///< added less subtracted; negative if more was freed than allocated
  std::int64_t peak = 0;   ///< largest value
  std::int64_t total = 0;  ///< everything that was added

  /// Adds `amount`, which is negative for a free.
  void add(std::int64_t amount) {
    value += amount;
    total += std::max(amount, std::int64_t{0});
    peak = std::max(peak, value);
  }
  /// Adds a scope that was inside this one.
  void add_inner(const ResourceCounter& inner) {
    peak = std::max(peak, value + inner.peak);
    value += inner.value;
    total += inner.total;
  }
};

/// ResourceCounters are the figures of one scope.
struct ResourceCounters {
  ResourceCounter bytes;        ///< asked for
  ResourceCounter allocations;  ///< number
};

/// A ResourceStatistics is a stack of scopes, of which the innermost counts.
/// Thread safety: every function may be called from any thread at any time.
class ResourceStatistics {
 public:
  /// Returns the figures of the innermost scope.
  ResourceCounters counters() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    return scopes_.back();
  }
  /// Begins a scope, whose figures are 0. Returns those of the scope around it.
  ResourceCounters push() {
    const std::lock_guard<std::mutex> lock(mutex_);
    const ResourceCounters outer = scopes_.back();
    scopes_.emplace_back();
    return outer;
  }
  /// Ends the innermost scope and adds its figures to the scope around it. Returns its figures.
  /// Throws InvalidArgument if no scope was begun.
  ResourceCounters pop() {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (scopes_.size() < 2) {
      throw InvalidArgument("pop_counters without push_counters: 0 scopes are open");
    }
    const ResourceCounters inner = scopes_.back();
    scopes_.pop_back();
    scopes_.back().bytes.add_inner(inner.bytes);
    scopes_.back().allocations.add_inner(inner.allocations);
    return inner;
  }
  /// Counts `number` allocations of `bytes` bytes in all. Both are negative for frees.
  void count(std::int64_t number, std::int64_t bytes) {
    const std::lock_guard<std::mutex> lock(mutex_);
    scopes_.back().allocations.add(number);
    scopes_.back().bytes.add(bytes);
  }

 private:
  mutable std::mutex mutex_;
  std::vector<ResourceCounters> scopes_{1};
};

/// A StatisticsAdaptor counts the bytes and the number of allocations, as RMM's
/// statistics_resource_adaptor. A scope, from push_counters to pop_counters, has its own figures.
///
///     cachalot::StatisticsAdaptor counted(resource);
///     counted.push_counters();
///     ...
///     std::int64_t peak = counted.pop_counters().bytes.peak;
///
/// A scope counts what all threads do. Errors are those of the upstream.
/// Thread safety: every function may be called from any thread at any time.
template <typename Upstream>
class StatisticsAdaptor
    : public ResourceAdaptor<StatisticsAdaptor<Upstream>, Upstream, ResourceStatistics> {
  using Base = ResourceAdaptor<StatisticsAdaptor, Upstream, ResourceStatistics>;

 public:
  /// Makes an adaptor whose figures are 0.
  explicit StatisticsAdaptor(Upstream upstream)
      : Base(std::move(upstream), std::make_shared<ResourceStatistics>()) {}

  /// Returns the bytes of the innermost scope.
  ResourceCounter bytes_counter() const { return this->state_->counters().bytes; }
  /// Returns the number of allocations of the innermost scope.
  ResourceCounter allocations_counter() const { return this->state_->counters().allocations; }
  /// Begins a scope, whose figures are 0. Returns those of the scope around it.
  ResourceCounters push_counters() const { return this->state_->push(); }
  /// Ends the innermost scope and adds its figures to the scope around it. Returns its figures.
  /// Throws InvalidArgument if no scope was begun.
  ResourceCounters pop_counters() const { return this->state_->pop(); }

 private:
  friend class ResourceCalls<StatisticsAdaptor>;

  void* allocate_as(const ResourceRequest& request) const {
    void* const ptr = this->allocate_upstream(request);
    this->state_->count(1, static_cast<std::int64_t>(request.bytes));
    return ptr;
  }
  void deallocate_as(void* ptr, const ResourceRequest& request) const noexcept {
    this->deallocate_upstream(ptr, request);
    this->state_->count(-1, -static_cast<std::int64_t>(request.bytes));
  }
};

CACHALOT_END_API
