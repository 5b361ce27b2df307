// A MemoryResource in RMM 25.4: as the resource of a device, of its containers, and as the upstream of its own resources and
// adaptors; and our adaptors over a resource of RMM's.
#include <gmock/gmock.h>

#include <random>
#include <regex>
#include <rmm/cuda_stream.hpp>
#include <rmm/device_buffer.hpp>
#include <rmm/device_uvector.hpp>
#include <rmm/mr/device/aligned_resource_adaptor.hpp>
#include <rmm/mr/device/cuda_memory_resource.hpp>
#include <rmm/mr/device/failure_callback_resource_adaptor.hpp>
#include <rmm/mr/device/logging_resource_adaptor.hpp>
#include <rmm/mr/device/per_device_resource.hpp>
#include <rmm/mr/device/pool_memory_resource.hpp>
#include <rmm/mr/device/statistics_resource_adaptor.hpp>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "cachalot/adaptors/limit.h"
#include "cachalot/adaptors/logging.h"
#include "cachalot/adaptors/statistics.h"
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

TEST_F(Rmm, IsAnUpstreamOfOurAdaptors) {
  rmm::mr::cuda_memory_resource cuda;
  rmm::mr::pool_memory_resource<rmm::mr::cuda_memory_resource> pool(&cuda, 16 * kMiB);
  const StatisticsAdaptor counted{Ref(pool)};
  const LimitAdaptor limited(counted, 4 * kMiB);
  void* const ptr = allocate(limited, 3 * kMiB, stream);
  EXPECT_THROW(allocate(limited, 2 * kMiB, stream), OutOfMemory);
  EXPECT_EQ(pool.pool_size(), 16 * kMiB);
  EXPECT_EQ(counted.bytes_counter().value, static_cast<std::int64_t>(3 * kMiB));
  deallocate(limited, ptr, 3 * kMiB, stream);
}

// The text of a log without threads and times, whose form must be that of the other log, too.
std::string calls_of(const std::string& log) {
  return std::regex_replace(log, std::regex(R"(\n\d+,\d\d:\d\d:\d\d[.:]\d{6},)"), "\n");
}

TEST_F(Rmm, WritesTheSameLogAsOurAdaptor) {
  std::ostringstream theirs;
  std::ostringstream ours;
  {
    LoggingAdaptor inner(resource, ours);
    rmm::mr::logging_resource_adaptor<LoggingAdaptor<MemoryResource>> outer(Ref(inner), theirs);
    for (const cudaStream_t on : {stream, cudaStream_t{nullptr}}) {
      void* const ptr = outer.allocate_async(3 * kMiB, rmm::cuda_stream_view(on));
      outer.deallocate_async(ptr, 3 * kMiB, rmm::cuda_stream_view(on));
    }
    EXPECT_THROW(static_cast<void>(outer.allocate_async(std::size_t{1} << 50, rmm::cuda_stream_view())),
                 std::bad_alloc);
    outer.flush();
  }
  EXPECT_EQ(calls_of(ours.str()), calls_of(theirs.str()));
  EXPECT_THAT(calls_of(ours.str()), testing::HasSubstr("\nallocate failure,"));
}

// As RMM's own benchmark: random sizes, three allocations to a free while there is room.
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
