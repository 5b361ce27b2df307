/// @file
/// The common base of memory resources that change the calls of another one.
#pragma once

#include "cachalot/require_cpp17.h"

#include <cstddef>
#include <memory>
#include <utility>

#include "cachalot/resource_calls.h"

CACHALOT_BEGIN_API

/// A LargestAlignment is the largest alignment that a resource is known to keep: its member
/// kLargestAlignment, and 256, cudaMalloc's, for a class without that member.
template <typename Resource, typename = void>
struct LargestAlignment {
  /// The number of bytes.
  static constexpr std::size_t kValue = kDefaultAlignment;
};
/// A LargestAlignment of a class with the member is that member.
template <typename Resource>
struct LargestAlignment<Resource, std::void_t<decltype(Resource::kLargestAlignment)>> {
  /// The number of bytes.
  static constexpr std::size_t kValue = Resource::kLargestAlignment;
};

/// A ResourceAdaptor is a memory resource over an upstream resource, of which it keeps a copy. It
/// has the upstream's properties. It is a handle: copies are cheap, share the adaptor's state and
/// compare equal.
///
/// `Upstream` is a stream-ordered resource that can be copied: a MemoryResource, an adaptor, or
/// CCCL's any_resource and resource_ref. `Derived` has the functions that ResourceCalls calls.
template <typename Derived, typename Upstream, typename State>
class ResourceAdaptor : public ResourceCalls<Derived>,
                        public ::cuda::forward_property<Derived, Upstream> {
  static_assert(kIsStreamOrderedResource<Upstream>,
                "the upstream of an adaptor must be a stream-ordered memory resource of CCCL");

 public:
  /// Copies the handle. A move is a copy, too, so that an adaptor that was moved from still serves.
  ResourceAdaptor(const ResourceAdaptor&) = default;
  /// Copies the handle.
  ResourceAdaptor& operator=(const ResourceAdaptor&) = default;

  /// The largest alignment that an allocation may be asked for with.
  static constexpr std::size_t kLargestAlignment = LargestAlignment<Upstream>::kValue;

  /// Returns the resource that the adaptor calls.
  const Upstream& upstream_resource() const { return upstream_; }

  /// Returns true if both are copies of one adaptor.
  friend bool operator==(const Derived& a, const Derived& b) noexcept {
    return a.state_ == b.state_;
  }
  /// Returns false if both are copies of one adaptor.
  friend bool operator!=(const Derived& a, const Derived& b) noexcept { return !(a == b); }

 protected:
  ~ResourceAdaptor() = default;

 private:
  friend Derived;

  ResourceAdaptor(Upstream upstream, std::shared_ptr<State> state)
      : upstream_(std::move(upstream)), state_(std::move(state)) {}

  void* allocate_upstream(const ResourceRequest& request) const {
    return allocate_from(upstream_, request);
  }
  void deallocate_upstream(void* ptr, const ResourceRequest& request) const {
    deallocate_to(upstream_, ptr, request);
  }

  mutable Upstream upstream_;  // a handle, whose calls need not be const
  std::shared_ptr<State> state_;
};

CACHALOT_END_API
