// Whether MemoryResource and the adaptors are what the included CCCL calls a memory resource: static assertions, and calls through
// CCCL's own handles over the simulated CUDA runtime. check_conformance.cmake compiles it with each CCCL that is at hand, as C++17
// and C++20, with its users' warnings as errors.
#include <cuda_runtime_api.h>

#include <cstdint>
#include <cstdio>
#include <memory>
#include <sstream>
#include <type_traits>

#include "cachalot/adaptors/alignment.h"
#include "cachalot/adaptors/failure_callback.h"
#include "cachalot/adaptors/limit.h"
#include "cachalot/adaptors/logging.h"
#include "cachalot/adaptors/statistics.h"
#include "cachalot/mr.h"

namespace {

using cachalot::MemoryResource;
static_assert(
    std::is_nothrow_move_constructible_v<MemoryResource>);  // so that CCCL's handles hold it without an allocation
static_assert(std::is_nothrow_move_constructible_v<cachalot::StatisticsAdaptor<MemoryResource>>);
using Access = cuda::mr::device_accessible;

// What holds for all of them.
template <typename Resource>
constexpr bool conforms() {
  static_assert(std::is_copy_constructible_v<Resource> && std::is_copy_assignable_v<Resource>);
  static_assert(cuda::std::equality_comparable<Resource>);
  static_assert(cuda::has_property<Resource, Access>);
  static_assert(!cuda::has_property<Resource, cuda::mr::host_accessible>);
#if CCCL_VERSION >= 3001000
  static_assert(cuda::mr::synchronous_resource_with<Resource, Access>);
  static_assert(cuda::mr::resource_with<Resource, Access>);
  static_assert(!cuda::mr::resource_with<Resource, Access, cuda::mr::host_accessible>);
#else
  static_assert(cuda::mr::resource_with<Resource, Access>);
  static_assert(cuda::mr::async_resource_with<Resource, Access>);
  static_assert(!cuda::mr::async_resource_with<Resource, Access, cuda::mr::host_accessible>);
#endif
  return true;
}

#if CCCL_VERSION >= 3001000
using Ref = cuda::mr::resource_ref<Access>;
using SyncRef = cuda::mr::synchronous_resource_ref<Access>;
#else
using Ref = cuda::mr::async_resource_ref<Access>;
using SyncRef = cuda::mr::resource_ref<Access>;
#endif

int failures = 0;

void expect(bool holds, const char* what) {
  if (holds) return;
  std::printf("does not hold: %s\n", what);
  ++failures;
}

// A mebibyte at this alignment through the handle, on the stream and without one.
template <typename Handle>
void use(Handle handle, cudaStream_t on) {
  constexpr std::size_t kBytes = std::size_t{1} << 20;
  const cuda::stream_ref stream(on);
  for (std::size_t alignment = 256; alignment <= MemoryResource::kLargestAlignment; alignment *= 2) {
#if CCCL_VERSION >= 3001000
    void* const ordered = handle.allocate(stream, kBytes, alignment);
    void* const synchronous = handle.allocate_sync(kBytes, alignment);
    handle.deallocate(stream, ordered, kBytes, alignment);
    handle.deallocate_sync(synchronous, kBytes, alignment);
#else
    void* const ordered = handle.allocate_async(kBytes, alignment, stream);
    void* const synchronous = handle.allocate(kBytes, alignment);
    handle.deallocate_async(ordered, kBytes, alignment, stream);
    handle.deallocate(synchronous, kBytes, alignment);
#endif
    expect(reinterpret_cast<std::uintptr_t>(ordered) % alignment == 0, "the alignment of an allocation on a stream");
    expect(reinterpret_cast<std::uintptr_t>(synchronous) % alignment == 0, "the alignment of one without a stream");
    expect(ordered != synchronous, "two allocations have two addresses");
  }
}

template <typename Resource>
void use_as_everything(Resource resource, cudaStream_t stream) {
  static_assert(conforms<Resource>());
  use(resource, stream);
  Ref ref(resource);
  use(ref, stream);
  expect(ref == Ref(resource), "two references to one resource compare equal");
  const SyncRef sync(resource);
  static_cast<void>(sync);
#if CCCL_VERSION >= 3002000
  cuda::mr::any_resource<Access> any(resource);
  use(any, stream);
  const cuda::mr::any_resource<Access> copy = any;
  expect(copy == any, "a copy of any_resource compares equal");
  use(cuda::mr::make_shared_resource<Resource>(resource), stream);
#endif
#if CCCL_VERSION >= 3003000
  expect(try_get_property(any, Access{}), "any_resource has the property at run time");
#endif
#if CCCL_VERSION >= 3004000
  static_assert(std::is_base_of_v<cuda::mr::memory_resource_base<Resource>, Resource>);
#endif
}

}  // namespace

int main() {
  auto allocator = std::make_shared<cachalot::CachingAllocator>(cachalot::cuda_devices());
  cudaStream_t stream = nullptr;
  if (cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) != cudaSuccess) return 2;
  const MemoryResource resource(allocator);
  std::ostringstream log;
  use_as_everything(resource, stream);
  use_as_everything(cachalot::LimitAdaptor(resource, std::size_t{1} << 30), stream);
  use_as_everything(cachalot::StatisticsAdaptor(resource), stream);
  use_as_everything(cachalot::LoggingAdaptor(resource, log), stream);
  use_as_everything(cachalot::FailureCallbackAdaptor(resource, [](std::size_t) { return false; }), stream);
  use_as_everything(cachalot::AlignmentAdaptor(resource, 512), stream);
  // CCCL's own handles as upstream.
  MemoryResource owner = resource;
  use(cachalot::StatisticsAdaptor(Ref(owner)), stream);
#if CCCL_VERSION >= 3002000
  const cachalot::LimitAdaptor limited(cuda::mr::any_resource<Access>(resource), std::size_t{1} << 30);
  static_assert(conforms<std::remove_const_t<decltype(limited)>>());
  use(limited, stream);
#endif
#if CCCL_VERSION >= 3004000  // in C++20, GCC and any_resource before 3.4 recurse: "satisfaction value … changed"
  use_as_everything(limited, stream);
#endif
  expect(allocator->memory_allocated() == 0, "everything was freed");
  std::printf("CCCL %d, C++ %ld: %d failures\n", CCCL_VERSION, static_cast<long>(__cplusplus), failures);
  return failures == 0 ? 0 : 1;
}
