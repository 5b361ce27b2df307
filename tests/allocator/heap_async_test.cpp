#include <gtest/gtest.h>

#include <vector>

#include "cachalot/caching_allocator.h"
#include "cachalot/errors.h"
#include "cachalot/simulated_device.h"

namespace cachalot {
namespace {

constexpr std::size_t kMegabyte = std::size_t{1} << 20;

// An allocator over CUDA's own pool, on a device of 256 MiB.
class HeapAsync : public ::testing::Test {
 protected:
  static SimulatedDevice::Config config() {
    SimulatedDevice::Config config;
    config.memory_bytes = 256 * kMegabyte;
    config.check_hazards = true;
    return config;
  }
  void TearDown() override { EXPECT_EQ(allocator.validate(), ""); }
  std::uint64_t count(DeviceCall call) const { return device->count(call); }

  std::shared_ptr<SimulatedDevice> device = std::make_shared<SimulatedDevice>(config());
  CachingAllocator allocator{{device}, parse_options("heap:async")};
};

TEST_F(HeapAsync, SegmentsComeFromThePoolAndGoBackWithoutAWaitForTheDevice) {
  const Stream stream = device->new_stream();
  void* const ptr = allocator.allocate(30 * kMegabyte, 0, stream);
  EXPECT_EQ(count(DeviceCall::malloc_async), 1u);
  EXPECT_EQ(count(DeviceCall::malloc), 0u);
  device->launch(stream, 1'000'000, {{reinterpret_cast<Address>(ptr), 30 * kMegabyte}});
  allocator.deallocate(ptr);
  const std::int64_t before = device->clock_us();
  allocator.empty_cache();
  EXPECT_LT(device->clock_us() - before, 1000);
  EXPECT_EQ(count(DeviceCall::free_async), 1u);
  EXPECT_EQ(count(DeviceCall::synchronize), 0u);
  EXPECT_EQ(allocator.memory_reserved(), 0u);
  // The pool has it again when the kernel is done.
  EXPECT_LT(device->memory_info().free_bytes, 256 * kMegabyte);
  device->synchronize();
  allocator.deallocate(allocator.allocate(256 * kMegabyte, 0, stream));
}

TEST_F(HeapAsync, DecisionsAreThoseOfSegments) {
  const auto other = std::make_shared<SimulatedDevice>(config());
  CachingAllocator segments({other}, parse_options("heap:segments"));
  std::vector<void*> live, live_there;
  for (const std::size_t bytes : {std::size_t{1000}, 3 * kMegabyte, 12 * kMegabyte, 7 * kMegabyte, std::size_t{700}}) {
    live.push_back(allocator.allocate(bytes));
    live_there.push_back(segments.allocate(bytes));
  }
  allocator.deallocate(live[1]);
  segments.deallocate(live_there[1]);
  EXPECT_EQ(allocator.memory_stats().reserved_bytes.all.peak, segments.memory_stats().reserved_bytes.all.peak);
  EXPECT_EQ(allocator.memory_stats().inactive_split.all.current, segments.memory_stats().inactive_split.all.current);
  EXPECT_EQ(allocator.memory_stats().segment.all.current, segments.memory_stats().segment.all.current);
  for (std::size_t i : {0u, 2u, 3u, 4u}) {
    allocator.deallocate(live[i]);
    segments.deallocate(live_there[i]);
  }
}

TEST_F(HeapAsync, ALackOfMemoryIsRecoveredFromAndThenReported) {
  void* const held = allocator.allocate(100 * kMegabyte);
  allocator.deallocate(allocator.allocate(120 * kMegabyte));
  void* const larger = allocator.allocate(150 * kMegabyte);  // once the cached segment is back
  EXPECT_THROW(allocator.allocate(200 * kMegabyte), OutOfMemory);
  allocator.deallocate(held);
  allocator.deallocate(larger);
}

TEST_F(HeapAsync, APoolWithoutMemoryIsAskedAgainOnceTheCacheIsEmpty) {
  allocator.deallocate(allocator.allocate(30 * kMegabyte));
  device->set_faults({{.call = DeviceCall::malloc_async, .nth = 1}});
  allocator.deallocate(allocator.allocate(40 * kMegabyte));
  EXPECT_EQ(allocator.memory_stats().num_alloc_retries, 1);
  EXPECT_EQ(allocator.memory_reserved(), 40 * kMegabyte);
}

TEST_F(HeapAsync, AStreamThatCapturesTakesMemoryOfMalloc) {
  const Stream stream = device->new_stream();
  device->begin_capture(stream);
  void* const ptr = allocator.allocate(kMegabyte, 0, stream);
  EXPECT_EQ(count(DeviceCall::malloc), 1u);
  EXPECT_EQ(count(DeviceCall::malloc_async), 0u);
  device->end_capture(stream);
  allocator.deallocate(ptr);
  allocator.empty_cache();
  EXPECT_EQ(count(DeviceCall::free), 1u);
  EXPECT_EQ(count(DeviceCall::free_async), 0u);
}

TEST_F(HeapAsync, ASegmentOfADestroyedStreamGoesBackBehindAllWork) {
  const Stream stream = device->new_stream();
  void* const ptr = allocator.allocate(kMegabyte, 0, stream);
  allocator.deallocate(ptr);
  device->stream_destroy(stream);
  allocator.empty_cache();
  EXPECT_EQ(count(DeviceCall::free_async), 0u);
  EXPECT_EQ(count(DeviceCall::free), 1u);
  EXPECT_EQ(allocator.memory_reserved(), 0u);
}

TEST_F(HeapAsync, ARefusedFreeKeepsTheSegment) {
  allocator.deallocate(allocator.allocate(kMegabyte));
  device->set_faults({{.call = DeviceCall::free_async, .nth = 1, .out_of_memory = false, .code = 700}});
  EXPECT_THROW(allocator.empty_cache(), CudaError);
  EXPECT_EQ(allocator.memory_reserved(), 2 * kMegabyte);
  EXPECT_EQ(allocator.validate(), "");
  allocator.empty_cache();
  EXPECT_EQ(allocator.memory_reserved(), 0u);
}

TEST_F(HeapAsync, ItsMemoryCannotBeShared) {
  void* const ptr = allocator.allocate(kMegabyte);
  EXPECT_THROW(allocator.share(ptr), InvalidArgument);
  allocator.deallocate(ptr);
}

TEST_F(HeapAsync, TheHeapCannotChangeAtRunTime) {
  EXPECT_THROW(allocator.configure("heap:segments"), InvalidArgument);
  EXPECT_EQ(allocator.options().heap, HeapKind::async);
}

}  // namespace
}  // namespace cachalot
