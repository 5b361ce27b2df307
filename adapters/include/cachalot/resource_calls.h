/// @file
/// The calls of a memory resource, as each version of CCCL (CUDA C++ Core Libraries) spells them.
#pragma once

#include "cachalot/require_cpp17.h"

#if !__has_include(<cuda/memory_resource>)
#error "cachalot/mr.h needs <cuda/memory_resource>: add CCCL's include folder (CUDA's include/cccl)"
#endif

#include <cuda/memory_resource>
#include <cuda/stream_ref>

#include <cstddef>

#include "cachalot/device.h"  // Stream

#if CCCL_VERSION < 3001000 && !defined(LIBCUDACXX_ENABLE_EXPERIMENTAL_MEMORY_RESOURCE)
#error "CCCL before 3.1: define LIBCUDACXX_ENABLE_EXPERIMENTAL_MEMORY_RESOURCE everywhere"
#endif

/// Is 1 with the calls of CCCL 3.1 and newer (allocate takes a stream, allocate_sync does not), and
/// 0 with those before (allocate_async takes a stream, allocate does not).
#if CCCL_VERSION >= 3001000
#define CACHALOT_MR_HAS_SYNC_CALLS 1
#else
#define CACHALOT_MR_HAS_SYNC_CALLS 0
#endif

CACHALOT_BEGIN_API

/// A ResourceRequest is a call of a memory resource, however CCCL spells it.
struct ResourceRequest {
  std::size_t bytes = 0;      ///< asked for
  std::size_t alignment = 0;  ///< of the address; a power of two
  Stream stream = nullptr;    ///< the stream in whose order the call is
  /// The call belongs to no stream's order. Memory that it allocates may be used at once, by work
  /// on any stream; work that uses memory that it frees is done.
  bool is_synchronous = false;
};

/// The alignment of calls that do not name one, which is cudaMalloc's.
inline constexpr std::size_t kDefaultAlignment = 256;

/// Returns what `resource` returns for the call.
template <typename Resource>
void* allocate_from(Resource& resource, const ResourceRequest& request) {
  const ::cuda::stream_ref stream(request.stream);
#if CACHALOT_MR_HAS_SYNC_CALLS
  return request.is_synchronous ? resource.allocate_sync(request.bytes, request.alignment)
                                : resource.allocate(stream, request.bytes, request.alignment);
#else
  return request.is_synchronous ? resource.allocate(request.bytes, request.alignment)
                                : resource.allocate_async(request.bytes, request.alignment, stream);
#endif
}

/// Frees what `resource` allocated for a call of these bytes and this alignment.
template <typename Resource>
void deallocate_to(Resource& resource, void* ptr, const ResourceRequest& request) {
  const ::cuda::stream_ref stream(request.stream);
#if CACHALOT_MR_HAS_SYNC_CALLS
  request.is_synchronous ? resource.deallocate_sync(ptr, request.bytes, request.alignment)
                         : resource.deallocate(stream, ptr, request.bytes, request.alignment);
#else
  request.is_synchronous ? resource.deallocate(ptr, request.bytes, request.alignment)
                         : resource.deallocate_async(ptr, request.bytes, request.alignment, stream);
#endif
}

/// ResourceCalls gives a class the calls of the included CCCL's memory resources. They all lead to
/// two functions of the class, which it may keep private to this base:
///
///     void* allocate_as(const ResourceRequest& request) const;
///     void deallocate_as(void* ptr, const ResourceRequest& request) const noexcept;
///
/// From CCCL 3.4 on the class also is an environment for CUB's algorithms, whose temporary storage
/// then comes from it.
template <typename Derived>
class ResourceCalls
#if CCCL_VERSION >= 3004000
    : public ::cuda::mr::memory_resource_base<Derived>
#endif
{
 public:
#if CACHALOT_MR_HAS_SYNC_CALLS
  /// Returns `bytes` bytes for work on `stream`.
  void* allocate(::cuda::stream_ref stream, std::size_t bytes,
                 std::size_t alignment = kDefaultAlignment) const {
    return self().allocate_as({bytes, alignment, stream.get(), false});
  }
  /// Frees memory behind the work queued on `stream`.
  void deallocate(::cuda::stream_ref stream, void* ptr, std::size_t bytes,
                  std::size_t alignment = kDefaultAlignment) const noexcept {
    self().deallocate_as(ptr, {bytes, alignment, stream.get(), false});
  }
  /// Returns `bytes` bytes for work on any stream.
  void* allocate_sync(std::size_t bytes, std::size_t alignment = kDefaultAlignment) const {
    return self().allocate_as({bytes, alignment, nullptr, true});
  }
  /// Frees memory that no work uses any more.
  void deallocate_sync(void* ptr, std::size_t bytes,
                       std::size_t alignment = kDefaultAlignment) const noexcept {
    self().deallocate_as(ptr, {bytes, alignment, nullptr, true});
  }
#else
  /// Returns `bytes` bytes for work on `stream`.
  void* allocate_async(std::size_t bytes, std::size_t alignment, ::cuda::stream_ref stream) const {
    return self().allocate_as({bytes, alignment, stream.get(), false});
  }
  /// Returns `bytes` bytes for work on `stream`.
  void* allocate_async(std::size_t bytes, ::cuda::stream_ref stream) const {
    return allocate_async(bytes, kDefaultAlignment, stream);
  }
  /// Frees memory behind the work queued on `stream`.
  void deallocate_async(void* ptr, std::size_t bytes, std::size_t alignment,
                        ::cuda::stream_ref stream) const noexcept {
    self().deallocate_as(ptr, {bytes, alignment, stream.get(), false});
  }
  /// Frees memory behind the work queued on `stream`.
  void deallocate_async(void* ptr, std::size_t bytes, ::cuda::stream_ref stream) const noexcept {
    deallocate_async(ptr, bytes, kDefaultAlignment, stream);
  }
  /// Returns `bytes` bytes for work on any stream.
  void* allocate(std::size_t bytes, std::size_t alignment = kDefaultAlignment) const {
    return self().allocate_as({bytes, alignment, nullptr, true});
  }
  /// Frees memory that no work uses any more.
  void deallocate(void* ptr, std::size_t bytes,
                  std::size_t alignment = kDefaultAlignment) const noexcept {
    self().deallocate_as(ptr, {bytes, alignment, nullptr, true});
  }
#endif

 protected:
  ResourceCalls() = default;

 private:
  const Derived& self() const { return static_cast<const Derived&>(*this); }
};

CACHALOT_END_API
