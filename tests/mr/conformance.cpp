// Checks that MemoryResource, and a user's resource over it, are memory resources of the included CCCL: static assertions, and
// calls through CCCL's own handles over the simulated CUDA runtime. check_conformance.cmake compiles it with each CCCL that is at
// hand, as C++17 and C++20, with its users' warnings as errors.
#include <cuda_runtime_api.h>

#include <cstdint>
#include <cstdio>
#include <memory>
#include <type_traits>

#include "cachalot/mr.h"

using Access = cuda::mr::device_accessible;
using cachalot::MemoryResource;

// A user's resource: it counts the bytes that a part of the program has. Not in the unnamed namespace, where Clang warns of functions
// that only some versions of CCCL call.
class Counted : public cachalot::ResourceCalls<Counted> {
 public:
  Counted(const MemoryResource& upstream, std::size_t& bytes) : upstream_(upstream), bytes_(&bytes) {}
  friend bool operator==(const Counted& a, const Counted& b) noexcept { return a.bytes_ == b.bytes_; }
  friend bool operator!=(const Counted& a, const Counted& b) noexcept { return !(a == b); }
  friend constexpr void get_property(const Counted& /*resource*/, Access /*property*/) noexcept {}

 private:
  friend class cachalot::ResourceCalls<Counted>;
  void* allocate_as(const cachalot::ResourceRequest& request) const {
    void* const ptr = cachalot::allocate_from(upstream_, request);
    *bytes_ += request.bytes;
    return ptr;
  }
  void deallocate_as(void* ptr, const cachalot::ResourceRequest& request) const noexcept {
    cachalot::deallocate_to(upstream_, ptr, request);
    *bytes_ -= request.bytes;
  }
  MemoryResource upstream_;
  std::size_t* bytes_;
};

namespace {

static_assert(
    std::is_nothrow_move_constructible_v<MemoryResource>);  // so that CCCL's handles hold it without an allocation

// Properties of all of them.
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
  for (std::size_t alignment = 256; alignment <= cachalot::kMaxAlignment; alignment *= 2) {
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
  use_as_everything(resource, stream);
  std::size_t bytes = 0;
  use_as_everything(Counted(resource, bytes), stream);
  expect(bytes == 0, "a resource over another one gets each free");
  expect(allocator->memory_allocated() == 0, "everything was freed");
  std::printf("CCCL %d, C++ %ld: %d failures\n", CCCL_VERSION, static_cast<long>(__cplusplus), failures);
  return failures == 0 ? 0 : 1;
}
