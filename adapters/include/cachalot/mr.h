/// @file
/// The memory resource of cachalot, for CCCL's cuda::mr, for CUB and for RMM.
///
/// This header needs CCCL's headers and the CUDA runtime's. CCCL 3.0 (CUDA 13.0), 3.1, 3.2 and
/// newer serve, and 2.7 (RMM 25.4); before 3.1 the program must define
/// LIBCUDACXX_ENABLE_EXPERIMENTAL_MEMORY_RESOURCE.
#pragma once

#include "cachalot/require_cpp17.h"

#include <cstddef>
#include <exception>
#include <memory>
#include <utility>

#include "cachalot/caching_allocator.h"
#include "cachalot/device.h"
#include "cachalot/resource_calls.h"

CACHALOT_BEGIN_API

/// A MemoryResource allocates memory of one device of a CachingAllocator, by the calls of CCCL's
/// memory resources. It is a handle: copies are cheap, share the allocator and compare equal.
///
///     auto allocator = std::make_shared<cachalot::CachingAllocator>(cachalot::cuda_devices());
///     cachalot::MemoryResource resource(allocator);
///     cuda::mr::any_resource<cuda::mr::device_accessible> any = resource;  // CCCL 3.2 and newer
///     void* p = resource.allocate(stream, 1 << 20);                        // CCCL 3.1 and newer
///     resource.deallocate(stream, p, 1 << 20);
///
/// Streams: memory that is freed on the stream that it was allocated for is reused there at once.
/// Memory that is freed on another stream is reused when the work queued there so far is done.
///
/// Calls without a stream: an allocation waits for the work that is queued on the legacy default
/// stream. Such memory is reused by such calls, so a program that makes them often should name a
/// stream instead.
///
/// Errors of allocate: OutOfMemory, which is a std::bad_alloc; CudaError; InvalidArgument for an
/// alignment that is not a power of two or above kMaxAlignment, and for a stream of another device,
/// which is noticed when a thread allocates on another stream than before. For 0 bytes it returns
/// nullptr.
/// Errors of deallocate: a free that the device refuses is retried later, as by
/// deallocate_when_possible. A pointer that is not a live allocation, or was allocated with other
/// bytes, ends the process: std::terminate, with the exception that names the mistake.
///
/// Thread safety: every function may be called from any thread at any time.
class MemoryResource : public ResourceCalls<MemoryResource> {
 public:
  /// Makes a resource of one device of `allocator`, which lives as long as a copy of the resource.
  /// Throws InvalidArgument if `allocator` is null, and for a device that it does not manage.
  explicit MemoryResource(std::shared_ptr<CachingAllocator> allocator, int device = 0)
      : allocator_(std::move(allocator)), device_(device) {
    if (allocator_ == nullptr) throw InvalidArgument("the allocator of a MemoryResource is null");
    allocator_->device(device);
  }
  /// Makes a resource of one device of `allocator`.
  /// Requires: `allocator` outlives the resource and its copies.
  /// Throws InvalidArgument for a device that it does not manage.
  explicit MemoryResource(CachingAllocator& allocator, int device = 0)
      : MemoryResource(std::shared_ptr<CachingAllocator>(std::shared_ptr<void>(), &allocator),
                       device) {}

  /// Copies the handle. A move is a copy, too, so that a resource that was moved from still serves.
  MemoryResource(const MemoryResource&) noexcept = default;
  /// Copies the handle.
  MemoryResource& operator=(const MemoryResource&) noexcept = default;
  ~MemoryResource() = default;

  /// Returns the allocator.
  CachingAllocator& allocator() const { return *allocator_; }
  /// Returns the index of the device.
  int device() const { return device_; }

  /// Returns true if one resource can free what the other has allocated.
  friend bool operator==(const MemoryResource& a, const MemoryResource& b) noexcept {
    return a.allocator_ == b.allocator_ && a.device_ == b.device_;
  }
  /// Returns false if one resource can free what the other has allocated.
  friend bool operator!=(const MemoryResource& a, const MemoryResource& b) noexcept {
    return !(a == b);
  }
  /// Declares that kernels may access the memory.
  friend constexpr void get_property(const MemoryResource& /*resource*/,
                                     ::cuda::mr::device_accessible /*property*/) noexcept {}

 private:
  friend class ResourceCalls<MemoryResource>;

  void* allocate_as(const ResourceRequest& request) const {
    void* const ptr = allocate_ordered(request);
    if (request.is_synchronous && ptr != nullptr) wait_for_default_stream(ptr);
    return ptr;
  }

  void* allocate_ordered(const ResourceRequest& request) const {
    require_own_stream(request.stream);
    const bool is_usual = request.alignment - 1 < kUsualAlignment &&
                          (request.alignment & (request.alignment - 1)) == 0;
    if (is_usual) return allocator_->allocate(request.bytes, device_, request.stream);
    AllocateOptions options;
    options.alignment = request.alignment;
    return allocator_->allocate(request.bytes, device_, request.stream, options);
  }

  // A thread mostly allocates on one stream, of which the device is then asked once.
  void require_own_stream(Stream stream) const {
    struct Known {
      const CachingAllocator* allocator = nullptr;
      int device = 0;
      Stream stream = nullptr;
    };
    thread_local Known known;
    const bool is_known =
        known.stream == stream && known.allocator == allocator_.get() && known.device == device_;
    if (is_known) return;
    require_stream_of_device(*allocator_->device(device_), stream);
    known = {allocator_.get(), device_, stream};
  }

  void deallocate_as(void* ptr, const ResourceRequest& request) const noexcept {
    try {
      allocator_->deallocate(ptr, request.bytes, device_, request.stream);
    } catch (const CudaError&) {
      allocator_->deallocate_when_possible(ptr);
    } catch (...) {  // caught, so that std::terminate tells the message
      std::terminate();
    }
  }

  // After the allocation of `ptr`, for the work that the memory is ordered behind: that of its last
  // user, and that of other streams which the default stream waits for. Frees `ptr` if it throws.
  void wait_for_default_stream(void* ptr) const {
    Device& device = *allocator_->device(device_);
    Event event = nullptr;
    try {
      event = device.event_create();
      device.event_record(event, nullptr);
      device.event_synchronize(event);
      device.event_destroy(std::exchange(event, nullptr));
    } catch (...) {
      allocator_->deallocate_when_possible(ptr);
      if (event != nullptr) destroy_if_possible(device, event);
      throw;
    }
  }
  static void destroy_if_possible(Device& device, Event event) noexcept {
    try {
      device.event_destroy(event);
    } catch (const CudaError&) {  // the caller gets the first error
    }
  }

  std::shared_ptr<CachingAllocator> allocator_;
  int device_;
};

static_assert(::cuda::has_property<MemoryResource, ::cuda::mr::device_accessible>);
static_assert(!::cuda::has_property<MemoryResource, ::cuda::mr::host_accessible>);

CACHALOT_END_API
