// A MemoryResource in RMM 26, compiled with its headers and the CCCL that they bring, and run as far as that is possible without a
// GPU.
#include <cstdint>
#include <cstdio>
#include <memory>
#include <rmm/device_buffer.hpp>
#include <rmm/device_uvector.hpp>
#include <rmm/mr/failure_callback_resource_adaptor.hpp>
#include <rmm/mr/limiting_resource_adaptor.hpp>
#include <rmm/mr/logging_resource_adaptor.hpp>
#include <rmm/mr/per_device_resource.hpp>
#include <rmm/mr/pool_memory_resource.hpp>
#include <rmm/mr/statistics_resource_adaptor.hpp>
#include <rmm/mr/tracking_resource_adaptor.hpp>
#include <sstream>
#include <stdexcept>
#include <string>
#include <utility>

#include "cachalot/mr.h"

namespace {

using cachalot::MemoryResource;
static_assert(cuda::mr::resource_with<MemoryResource, cuda::mr::device_accessible>);
static_assert(std::is_constructible_v<rmm::device_async_resource_ref, MemoryResource&>);

// The parts of RMM that take a resource. Each says whether it serves: its library has a CUDA runtime of its own inside, which the
// simulated one does not replace, so a part serves as far as it calls no CUDA.
int failures = 0;

template <typename Part>
void try_part(const char* name, Part part) {
  try {
    part();
    std::printf("%s: serves\n", name);
  } catch (const std::exception& error) {
    std::printf("%s: %s\n", name, error.what());
    ++failures;
  }
}

void require(bool holds, const char* what) {
  if (!holds) throw std::logic_error(what);
}

// RMM's adaptors over each other and a MemoryResource. The last one frees `cached` when 3 MiB are used up.
void stack_adaptors(const MemoryResource& resource, cuda::stream_ref stream) {
  constexpr std::size_t kMiB = std::size_t{1} << 20;
  std::ostringstream log;
  rmm::mr::statistics_resource_adaptor counted(resource);
  rmm::mr::limiting_resource_adaptor limited(counted, 3 * kMiB);
  rmm::mr::logging_resource_adaptor logged(limited, log);
  rmm::mr::tracking_resource_adaptor tracked(logged);
  void* cached = tracked.allocate(stream, 2 * kMiB, 256);
  const auto free_cached = [&](std::size_t /*bytes*/, void* /*argument*/) {
    if (cached == nullptr) return false;
    tracked.deallocate(stream, std::exchange(cached, nullptr), 2 * kMiB, 256);
    return true;
  };
  rmm::mr::failure_callback_resource_adaptor<rmm::bad_alloc> retrying(tracked, free_cached, nullptr);
  void* const ptr = retrying.allocate(stream, 2 * kMiB, 256);
  require(cached == nullptr, "the callback was called");
  require(tracked.get_allocated_bytes() == 2 * kMiB, "the bytes that are tracked");
  require(limited.get_allocated_bytes() == 2 * kMiB, "the bytes that count for the limit");
  retrying.deallocate(stream, ptr, 2 * kMiB, 256);
  require(counted.get_bytes_counter().peak == static_cast<std::int64_t>(2 * kMiB), "the peak");
  require(counted.get_allocations_counter().total == 2, "the number of allocations");
  logged.flush();
  require(log.str().find("allocate failure") != std::string::npos, "the log has the failure");
}

// Compiled and linked only: events that the program's runtime makes for the pool are not events of the library's.
[[maybe_unused]] void use_pool(MemoryResource resource, cuda::stream_ref stream) {
  rmm::mr::pool_memory_resource pool(resource, 1 << 20);
  pool.deallocate(stream, pool.allocate(stream, 1000, 256), 1000, 256);
}

void use_rmm(MemoryResource resource, cuda::stream_ref stream) {
  try_part("resource_ref", [&] {
    rmm::device_async_resource_ref ref(resource);
    ref.deallocate(stream, ref.allocate(stream, 1000, 256), 1000, 256);
  });
  try_part("adaptors", [&] { stack_adaptors(resource, stream); });
  try_part("set_per_device_resource", [&] {
    rmm::mr::set_per_device_resource(rmm::cuda_device_id{0}, resource);
    rmm::device_async_resource_ref ref = rmm::mr::get_per_device_resource_ref(rmm::cuda_device_id{0});
    ref.deallocate(stream, ref.allocate(stream, 1000, 256), 1000, 256);
  });
  try_part("device_buffer", [&] { rmm::device_buffer buffer(1000, stream, resource); });
  try_part("device_uvector", [&] { rmm::device_uvector<double> numbers(100, stream, resource); });
}

}  // namespace

int main() {
  const auto allocator = std::make_shared<cachalot::CachingAllocator>(cachalot::cuda_devices());
  use_rmm(MemoryResource(allocator), cuda::stream_ref(cudaStream_t{nullptr}));
  std::printf("%d parts fail; %zu bytes are allocated\n", failures, allocator->memory_allocated());
  return failures == 0 ? 0 : 1;
}
