/// @file
/// The adaptor that limits the memory of a resource's users.
#pragma once

#include "cachalot/require_cpp17.h"

#include <atomic>
#include <cstddef>
#include <memory>
#include <string>
#include <utility>

#include "cachalot/errors.h"
#include "cachalot/resource_adaptor.h"

CACHALOT_BEGIN_API

/// A ByteLimit counts bytes up to a limit.
/// Thread safety: every function may be called from any thread at any time.
class ByteLimit {
 public:
  /// Makes a limit with nothing counted.
  explicit ByteLimit(std::size_t limit_bytes) : limit_bytes_(limit_bytes) {}

  /// Counts the bytes. Returns false, having counted nothing, if the limit would be exceeded.
  bool add(std::size_t bytes) {
    std::size_t live = allocated_bytes_.load(std::memory_order_relaxed);
    do {
      if (bytes > limit_bytes_ - live) return false;
    } while (
        !allocated_bytes_.compare_exchange_weak(live, live + bytes, std::memory_order_relaxed));
    return true;
  }
  /// Subtracts bytes that add has counted.
  void subtract(std::size_t bytes) { allocated_bytes_.fetch_sub(bytes, std::memory_order_relaxed); }
  /// Returns the bytes that are counted.
  std::size_t allocated_bytes() const { return allocated_bytes_.load(std::memory_order_relaxed); }
  /// Returns the limit.
  std::size_t limit_bytes() const { return limit_bytes_; }

 private:
  const std::size_t limit_bytes_;
  std::atomic<std::size_t> allocated_bytes_{0};
};

/// A LimitAdaptor refuses requests that would take its users beyond a number of bytes. Each request
/// counts with its bytes rounded up to 256, as in RMM's limiting_resource_adaptor; memory that the
/// upstream caches does not count.
///
///     cachalot::LimitAdaptor limited(resource, std::size_t{8} << 30);
///
/// Errors of allocate: OutOfMemory, whose device() is -1, if the limit would be exceeded; and those
/// of the upstream.
/// Thread safety: every function may be called from any thread at any time.
template <typename Upstream>
class LimitAdaptor : public ResourceAdaptor<LimitAdaptor<Upstream>, Upstream, ByteLimit> {
  using Base = ResourceAdaptor<LimitAdaptor, Upstream, ByteLimit>;

 public:
  /// Makes an adaptor that passes requests on while at most `limit_bytes` bytes are allocated.
  LimitAdaptor(Upstream upstream, std::size_t limit_bytes)
      : Base(std::move(upstream), std::make_shared<ByteLimit>(limit_bytes)) {}

  /// Returns the bytes that are allocated through the adaptor and its copies.
  std::size_t allocated_bytes() const { return this->state_->allocated_bytes(); }
  /// Returns the limit in bytes.
  std::size_t limit_bytes() const { return this->state_->limit_bytes(); }

 private:
  friend class ResourceCalls<LimitAdaptor>;

  // A number of bytes that is too large to be rounded up stays as it is.
  static std::size_t counted(std::size_t bytes) {
    const std::size_t rounded = (bytes + kDefaultAlignment - 1) / kDefaultAlignment;
    return rounded == 0 ? bytes : rounded * kDefaultAlignment;
  }

  void* allocate_as(const ResourceRequest& request) const {
    const std::size_t bytes = counted(request.bytes);
    if (!this->state_->add(bytes)) refuse(request.bytes);
    try {
      return this->allocate_upstream(request);
    } catch (...) {
      this->state_->subtract(bytes);
      throw;
    }
  }

  // Memory that is not free yet must not be allowed to another caller.
  void deallocate_as(void* ptr, const ResourceRequest& request) const noexcept {
    this->deallocate_upstream(ptr, request);
    this->state_->subtract(counted(request.bytes));
  }

  [[noreturn]] void refuse(std::size_t bytes) const {
    throw OutOfMemory("out of memory: " + std::to_string(bytes) + " bytes were requested, and " +
                          std::to_string(allocated_bytes()) + " of the " +
                          std::to_string(limit_bytes()) +
                          " bytes that a LimitAdaptor allows are allocated",
                      -1, bytes);
  }
};

CACHALOT_END_API
