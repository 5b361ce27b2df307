// A MemoryResource in RMM 25.4: as the resource of a device, of its containers, and as the upstream of its own resources and
// adaptors.
#include <gmock/gmock.h>

#include <random>
#include <rmm/cuda_stream.hpp>
#include <rmm/device_buffer.hpp>
#include <rmm/device_uvector.hpp>
#include <rmm/mr/device/aligned_resource_adaptor.hpp>
#include <rmm/mr/device/failure_callback_resource_adaptor.hpp>
#include <rmm/mr/device/limiting_resource_adaptor.hpp>
#include <rmm/mr/device/logging_resource_adaptor.hpp>
#include <rmm/mr/device/per_device_resource.hpp>
#include <rmm/mr/device/pool_memory_resource.hpp>
#include <rmm/mr/device/statistics_resource_adaptor.hpp>
#include <rmm/mr/device/tracking_resource_adaptor.hpp>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "tests/mr/testing.h"

namespace cachalot {
namespace {

using Ref = rmm::device_async_resource_ref;

class Rmm : public ResourceTest {};

TEST_F(Rmm, TakesItAsTheResourceOfADevice) {
  const rmm::cuda_device_id device{0};
  const Ref before = rmm::mr::set_per_device_resource_ref(device, resource);
  {
    EXPECT_TRUE(rmm::mr::get_current_device_resource_ref() == Ref(resource));
    rmm::device_buffer buffer(1000, rmm::cuda_stream_view(stream));
    EXPECT_EQ(allocator->requested_size(buffer.data()), 1000U);
    buffer.resize(5000, rmm::cuda_stream_view(stream));
    rmm::device_uvector<double> numbers(100, rmm::cuda_stream_view(stream));
    EXPECT_EQ(allocator->requested_size(numbers.data()), 100 * sizeof(double));
  }
  rmm::mr::set_per_device_resource_ref(device, before);
  EXPECT_EQ(allocator->memory_allocated(), 0U);
}

TEST_F(Rmm, TakesItAsTheUpstreamOfItsPool) {
  {
    rmm::mr::pool_memory_resource<MemoryResource> pool(&resource, 8 * kMiB);
    EXPECT_EQ(allocator->memory_allocated(), 8 * kMiB);
    void* const ptr = pool.allocate_async(3 * kMiB, rmm::cuda_stream_view(stream));
    void* const grown = pool.allocate_async(20 * kMiB, rmm::cuda_stream_view(stream));
    EXPECT_GE(allocator->memory_allocated(), 28 * kMiB);
    pool.deallocate_async(ptr, 3 * kMiB, rmm::cuda_stream_view(stream));
    pool.deallocate_async(grown, 20 * kMiB, rmm::cuda_stream_view(stream));
  }
  EXPECT_EQ(allocator->memory_allocated(), 0U);
}

TEST_F(Rmm, TakesItAsTheUpstreamOfItsAdaptors) {
  rmm::mr::statistics_resource_adaptor<MemoryResource> counted(&resource);
  rmm::mr::aligned_resource_adaptor<decltype(counted)> aligned(&counted, 4096);
  void* const ptr = aligned.allocate_async(1000, rmm::cuda_stream_view(stream));
  EXPECT_EQ(address(ptr) % 4096, 0U);
  EXPECT_EQ(counted.get_allocations_counter().value, 1);
  aligned.deallocate_async(ptr, 1000, rmm::cuda_stream_view(stream));
  EXPECT_EQ(allocator->memory_allocated(), 0U);
}

TEST_F(Rmm, CatchesItsErrorsAsBadAlloc) {
  int calls = 0;
  rmm::mr::failure_callback_resource_adaptor<MemoryResource, std::bad_alloc> retrying(
      &resource,
      [](std::size_t, void* counter) {
        ++*static_cast<int*>(counter);
        return false;
      },
      &calls);
  EXPECT_THROW(static_cast<void>(retrying.allocate_async(std::size_t{1} << 50, rmm::cuda_stream_view(stream))),
               std::bad_alloc);
  EXPECT_EQ(calls, 1);
}

TEST_F(Rmm, StacksItsAdaptorsOverIt) {
  const rmm::cuda_stream_view on(stream);
  std::ostringstream log;
  rmm::mr::statistics_resource_adaptor<MemoryResource> counted(&resource);
  rmm::mr::limiting_resource_adaptor<decltype(counted)> limited(&counted, 3 * kMiB);
  rmm::mr::logging_resource_adaptor<decltype(limited)> logged(&limited, log);
  rmm::mr::tracking_resource_adaptor<decltype(logged)> tracked(&logged);
  void* cached = tracked.allocate_async(2 * kMiB, on);
  const auto free_cached = [&](std::size_t /*bytes*/, void* /*argument*/) {
    if (cached == nullptr) return false;
    tracked.deallocate_async(std::exchange(cached, nullptr), 2 * kMiB, on);
    return true;
  };
  rmm::mr::failure_callback_resource_adaptor<decltype(tracked), rmm::bad_alloc> all(&tracked, free_cached, nullptr);
  void* const ptr = all.allocate_async(2 * kMiB, on);
  EXPECT_EQ(cached, nullptr) << "3 MiB are used up, and the callback has made room";
  EXPECT_EQ(allocator->requested_size(ptr), 2 * kMiB);
  EXPECT_EQ(tracked.get_allocated_bytes(), 2 * kMiB);
  EXPECT_EQ(limited.get_allocated_bytes(), 2 * kMiB);
  EXPECT_THROW(static_cast<void>(all.allocate_async(2 * kMiB, on)), rmm::bad_alloc);
  all.deallocate_async(ptr, 2 * kMiB, on);
  EXPECT_EQ(counted.get_bytes_counter().peak, static_cast<std::int64_t>(2 * kMiB));
  EXPECT_EQ(counted.get_allocations_counter().total, 2);
  logged.flush();
  EXPECT_THAT(log.str(), testing::ContainsRegex(",allocate failure,[^\n]*\n.*,free,.*,allocate,"));
}

// The sequence is that of RMM's own benchmark: random sizes, three allocations to a free while there is room.
TEST_F(Rmm, RunsARandomSequenceThroughItsHandle) {
  Ref ref(resource);
  const rmm::cuda_stream_view on(stream);
  std::mt19937 random(25);
  std::vector<std::pair<void*, std::size_t>> live;
  for (int i = 0; i < 3000; ++i) {
    if (live.empty() || (random() % 100 < 73 && live.size() < 500)) {
      const std::size_t bytes = 1 + random() % (4 * kMiB);
      live.emplace_back(ref.allocate_async(bytes, on), bytes);
      ASSERT_EQ(address(live.back().first) % 256, 0U);
    } else {
      std::swap(live[random() % live.size()], live.back());
      ref.deallocate_async(live.back().first, live.back().second, on);
      live.pop_back();
    }
  }
  EXPECT_EQ(allocator->memory_stats().allocation.all.current, static_cast<std::int64_t>(live.size()));
  for (const auto& [ptr, bytes] : live) ref.deallocate_async(ptr, bytes, on);
  EXPECT_EQ(allocator->memory_allocated(), 0U);
}

}  // namespace
}  // namespace cachalot
