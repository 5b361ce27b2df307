/// @file
/// Pinned host memory for the containers of std::pmr.
#pragma once

#include "cachalot/require_cpp17.h"

#include <cstddef>
#include <memory>
#include <memory_resource>

#include "cachalot/pinned_host_allocator.h"

CACHALOT_BEGIN_API

/// A PinnedMemoryResource gives containers of std::pmr pinned host memory, which asynchronous
/// copies to and from a GPU need.
///
///     cachalot::PinnedHostAllocator host(cachalot::cuda_devices().at(0));
///     cachalot::PinnedMemoryResource pinned(host);
///     std::pmr::vector<float> batch(1024, &pinned);
///     cudaMemcpyAsync(to, batch.data(), bytes, cudaMemcpyHostToDevice, stream);
///     host.record_stream(batch.data(), stream);  // batch may go at once
///
/// Device memory has no such resource: the containers write to their memory on the host.
///
/// Equality: two resources are equal if they have the same allocator.
/// Lifetime: a container may be destroyed after the allocator (as at the exit of the process); its
/// memory went back with the allocator. It must not outlive the resource.
/// Requires: no stream that is recorded on a container's memory captures a graph when the container
/// frees that memory; the process ends if one does, because a container's free cannot fail.
/// Thread safety: every method may be called from any thread at any time.
class PinnedMemoryResource final : public std::pmr::memory_resource {
 public:
  /// Makes a resource of memory of `host`.
  explicit PinnedMemoryResource(PinnedHostAllocator& host)
      : host_(&host), life_(host.cache().life()) {}
  /// Returns the allocator.
  PinnedHostAllocator& host() const { return *host_; }

 private:
  // Throws InvalidArgument for an alignment above 512 or that is no power of two; OutOfMemory.
  void* do_allocate(std::size_t bytes, std::size_t alignment) override;
  void do_deallocate(void* memory, std::size_t bytes, std::size_t alignment) override;
  bool do_is_equal(const std::pmr::memory_resource& other) const noexcept override;

  PinnedHostAllocator* host_;
  std::weak_ptr<const void> life_;  // of the allocator
};

CACHALOT_END_API
