/// @file
/// The adaptor that calls a function of the program when a resource fails.
#pragma once

#include "cachalot/require_cpp17.h"

#include <cstddef>
#include <functional>
#include <memory>
#include <new>
#include <utility>

#include "cachalot/errors.h"
#include "cachalot/resource_adaptor.h"

CACHALOT_BEGIN_API

/// A FailureCallback is called with the bytes of a request that has failed. It frees what it can.
/// Returns true if the request should be tried again.
using FailureCallback = std::function<bool(std::size_t bytes)>;

/// A FailureCallbackAdaptor calls a function when the upstream throws an `Exception`, and tries the
/// request again as long as the function returns true, as RMM's failure_callback_resource_adaptor.
///
///     cachalot::FailureCallbackAdaptor retrying(resource, [&](std::size_t) { return spill(); });
///
/// Errors of allocate: those of the upstream, and those that the function throws.
/// Thread safety: allocate may be called from any thread at any time, and the function is then
/// called on that thread: it must be safe to be called concurrently.
template <typename Upstream, typename Exception = std::bad_alloc>
class FailureCallbackAdaptor : public ResourceAdaptor<FailureCallbackAdaptor<Upstream, Exception>,
                                                      Upstream, const FailureCallback> {
  using Base = ResourceAdaptor<FailureCallbackAdaptor, Upstream, const FailureCallback>;

 public:
  /// Makes an adaptor that calls `callback`. Throws InvalidArgument if it is empty.
  FailureCallbackAdaptor(Upstream upstream, FailureCallback callback)
      : Base(std::move(upstream), std::make_shared<const FailureCallback>(std::move(callback))) {
    if (!*this->state_) throw InvalidArgument("the callback of a FailureCallbackAdaptor is empty");
  }

 private:
  friend class ResourceCalls<FailureCallbackAdaptor>;

  void* allocate_as(const ResourceRequest& request) const {
    while (true) {
      try {
        return this->allocate_upstream(request);
      } catch (const Exception&) {
        if (!(*this->state_)(request.bytes)) throw;
      }
    }
  }
  void deallocate_as(void* ptr, const ResourceRequest& request) const noexcept {
    this->deallocate_upstream(ptr, request);
  }
};

CACHALOT_END_API
