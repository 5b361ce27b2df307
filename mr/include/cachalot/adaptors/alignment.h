/// @file
/// The adaptor that aligns a resource's allocations.
#pragma once

#include "cachalot/require_cpp17.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <utility>

#include "cachalot/errors.h"
#include "cachalot/resource_adaptor.h"

CACHALOT_BEGIN_API

/// An AlignmentRule says which requests get which alignment, and keeps the addresses that the
/// upstream returned where they are not those that the callers have.
/// Thread safety: every function may be called from any thread at any time.
class AlignmentRule {
 public:
  /// Makes a rule. Throws InvalidArgument unless `alignment` is a power of two.
  AlignmentRule(std::size_t alignment, std::size_t threshold_bytes)
      : alignment_(alignment), threshold_bytes_(threshold_bytes) {
    require_power_of_two(alignment);
  }

  /// Throws InvalidArgument unless `alignment` is a power of two.
  static void require_power_of_two(std::size_t alignment) {
    if (alignment != 0 && (alignment & (alignment - 1)) == 0) return;
    throw InvalidArgument("an alignment of " + std::to_string(alignment) +
                          " bytes: it must be a power of two");
  }
  /// Returns the alignment in bytes.
  std::size_t alignment() const { return alignment_; }
  /// Returns the alignment of a request.
  std::size_t alignment_of(const ResourceRequest& request) const {
    return request.bytes < threshold_bytes_ ? request.alignment
                                            : std::max(alignment_, request.alignment);
  }
  /// Keeps `upstream`, the address that the upstream returned for `ptr`. Throws std::bad_alloc.
  void keep(void* ptr, void* upstream) {
    const std::lock_guard<std::mutex> lock(mutex_);
    upstream_of_.emplace(ptr, upstream);
  }
  /// Returns the address that the upstream returned for `ptr`, and forgets it.
  void* take(void* ptr) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto entry = upstream_of_.find(ptr);
    if (entry == upstream_of_.end()) return ptr;
    void* const upstream = entry->second;
    upstream_of_.erase(entry);
    return upstream;
  }

 private:
  const std::size_t alignment_;
  const std::size_t threshold_bytes_;
  std::mutex mutex_;
  std::unordered_map<void*, void*> upstream_of_;
};

/// An AlignmentAdaptor aligns the allocations of at least a number of bytes, as RMM's
/// aligned_resource_adaptor. An upstream that is known to keep such alignments (LargestAlignment),
/// as a MemoryResource and adaptors over it, gets the alignment with the request. Another one gets
/// a larger request, of which the adaptor returns the aligned part.
///
///     cachalot::AlignmentAdaptor aligned(resource, 64 << 10);
///
/// Errors of allocate: those of the upstream, and InvalidArgument for a request whose alignment is
/// no power of two.
/// Thread safety: every function may be called from any thread at any time.
template <typename Upstream>
class AlignmentAdaptor
    : public ResourceAdaptor<AlignmentAdaptor<Upstream>, Upstream, AlignmentRule> {
  using Base = ResourceAdaptor<AlignmentAdaptor, Upstream, AlignmentRule>;

 public:
  /// The largest alignment that an allocation may be asked for with: any.
  static constexpr std::size_t kLargestAlignment = SIZE_MAX / 2 + 1;

  /// Makes an adaptor that aligns requests of at least `threshold_bytes` bytes to `alignment`, and
  /// every request to its own alignment.
  /// Throws InvalidArgument unless `alignment` is a power of two.
  explicit AlignmentAdaptor(Upstream upstream, std::size_t alignment,
                            std::size_t threshold_bytes = 0)
      : Base(std::move(upstream), std::make_shared<AlignmentRule>(alignment, threshold_bytes)) {}

  /// Returns the alignment in bytes.
  std::size_t alignment() const { return this->state_->alignment(); }

 private:
  friend class ResourceCalls<AlignmentAdaptor>;

  static constexpr std::size_t kUpstreamKeeps = LargestAlignment<Upstream>::kValue;

  // The request for the upstream.
  ResourceRequest upstream_request(const ResourceRequest& request) const {
    ResourceRequest upstream = request;
    upstream.alignment = this->state_->alignment_of(request);
    if (upstream.alignment <= kUpstreamKeeps) return upstream;
    const std::size_t slack = upstream.alignment - kUpstreamKeeps;
    upstream.bytes = request.bytes > SIZE_MAX - slack ? SIZE_MAX : request.bytes + slack;
    upstream.alignment = kUpstreamKeeps;
    return upstream;
  }

  void* allocate_as(const ResourceRequest& request) const {
    AlignmentRule::require_power_of_two(request.alignment);
    const ResourceRequest upstream = upstream_request(request);
    const std::size_t alignment = this->state_->alignment_of(request);
    void* const raw = this->allocate_upstream(upstream);
    const auto address = reinterpret_cast<std::uintptr_t>(raw);
    const std::size_t before = (alignment - address % alignment) % alignment;
    if (before == 0) return raw;
    void* const ptr = static_cast<char*>(raw) + before;
    try {
      this->state_->keep(ptr, raw);
    } catch (...) {
      this->deallocate_upstream(raw, upstream);
      throw;
    }
    return ptr;
  }

  void deallocate_as(void* ptr, const ResourceRequest& request) const noexcept {
    this->deallocate_upstream(this->state_->take(ptr), upstream_request(request));
  }
};

CACHALOT_END_API
