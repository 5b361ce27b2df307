// The heap over managed memory: heap:managed.
#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cachalot/errors.h"
#include "tests/allocator/testing.h"

namespace cachalot {
namespace {

// An allocator over managed memory, on a device of 256 MiB with a host that has room for 512 MiB.
class HeapManaged : public ::testing::Test {
 protected:
  static SimulatedDevice::Config config() {
    SimulatedDevice::Config config = World::config_of(256 * kMiB);
    config.managed_host_bytes = 512 * kMiB;
    config.check_hazards = true;
    return config;
  }

  World world{config(), "heap:managed"};
  CachingAllocator& allocator = world.allocator;
  SimulatedDevice& device = *world.device;
};

TEST_F(HeapManaged, SegmentsAreOfManagedMemoryAndGoBackByFree) {
  void* const ptr = world.allocate(30 * kMiB);
  EXPECT_EQ(world.count(DeviceCall::malloc_managed), 1u);
  EXPECT_EQ(world.count(DeviceCall::malloc), 0u);
  allocator.deallocate(ptr);
  EXPECT_EQ(world.reserved(), 30 * kMiB);
  allocator.empty_cache();
  EXPECT_EQ(world.count(DeviceCall::free), 1u);
  EXPECT_EQ(world.reserved(), 0u);
  EXPECT_EQ(device.used_bytes(), 0u);
}

TEST_F(HeapManaged, DecisionsAreThoseOfSegments) {
  World segments(config(), "heap:segments");
  std::vector<void*> live, live_there;
  for (const std::size_t bytes : {std::size_t{1000}, 3 * kMiB, 12 * kMiB, 7 * kMiB, std::size_t{700}}) {
    live.push_back(world.allocate(bytes));
    live_there.push_back(segments.allocate(bytes));
  }
  allocator.deallocate(live[1]);
  segments.allocator.deallocate(live_there[1]);
  EXPECT_EQ(picture(allocator), picture(segments.allocator));
  EXPECT_EQ(world.segments(), segments.segments());
  EXPECT_EQ(world.count(DeviceCall::malloc_managed), segments.count(DeviceCall::malloc));
}

TEST_F(HeapManaged, HoldsMoreThanTheDeviceHasAndTheFiguresAreRight) {
  void* const first = world.allocate(200 * kMiB);
  void* const second = world.allocate(300 * kMiB);
  EXPECT_EQ(world.reserved(), 500 * kMiB);
  EXPECT_EQ(allocator.memory_stats().reserved_bytes.all.peak, static_cast<std::int64_t>(500 * kMiB));
  EXPECT_EQ(device.used_bytes(), 256 * kMiB);
  EXPECT_EQ(device.managed_host_bytes(), 244 * kMiB);
  EXPECT_EQ(device.memory_info().free_bytes, 0u);
  std::size_t in_snapshot = 0;
  for (const SegmentSnapshot& segment : allocator.snapshot().segments) in_snapshot += segment.total_size;
  EXPECT_EQ(in_snapshot, 500 * kMiB);
  EXPECT_EQ(allocator.validate(), "");
  device.launch(nullptr, 1000, {{address(second), 300 * kMiB}});
  allocator.deallocate(first);
  allocator.deallocate(second);
  allocator.empty_cache();
  EXPECT_EQ(device.used_bytes() + device.managed_host_bytes(), 0u);
}

TEST_F(HeapManaged, CachedMemoryIsReusedAboveTheSizeOfTheDevice) {
  allocator.deallocate(world.allocate(400 * kMiB));
  allocator.deallocate(world.allocate(400 * kMiB));
  EXPECT_EQ(world.count(DeviceCall::malloc_managed), 1u);
}

TEST_F(HeapManaged, AHostWithoutRoomIsRecoveredFromAndThenReported) {
  void* const held = world.allocate(400 * kMiB);
  allocator.deallocate(world.allocate(300 * kMiB));
  void* const other = world.allocate(360 * kMiB);  // once the cached segment is back
  EXPECT_EQ(allocator.memory_stats().num_alloc_retries, 1);
  const std::string message = out_of_memory([&] { world.allocate(20 * kMiB); });
  EXPECT_CONTAINS(message, "GPU 0 has a total capacity of 256.00 MiB of which 0 bytes is free. ");
  EXPECT_CONTAINS(message, " 760.00 MiB is allocated and 760.00 MiB is reserved.");
  EXPECT_CONTAINS(message, " With heap:managed, memory that the GPU has no room for lies on the host.");
  allocator.deallocate(held);
  allocator.deallocate(other);
}

TEST_F(HeapManaged, ALimitHoldsBelowAndAboveTheSizeOfTheDevice) {
  allocator.set_limit(MemoryLimit::parse("400MiB"));
  void* const held = world.allocate(300 * kMiB);
  EXPECT_CONTAINS(out_of_memory([&] { world.allocate(200 * kMiB); }), "400.00 MiB allowed by set_limit(\"400MiB\"); ");
  allocator.set_limit(MemoryLimit::parse("50%"));
  EXPECT_CONTAINS(out_of_memory([&] { world.allocate(2 * kMiB); }), "128.00 MiB allowed by set_limit(\"50%\"); ");
  EXPECT_EQ(world.count(DeviceCall::malloc_managed), 1u) << "the device was not asked";
  allocator.deallocate(held);
}

TEST_F(HeapManaged, ALimitThatIsReachedGivesCachedMemoryBackFirst) {
  allocator.set_limit(MemoryLimit::parse("400MiB"));
  allocator.deallocate(world.allocate(300 * kMiB));
  void* const ptr = world.allocate(350 * kMiB);
  EXPECT_EQ(world.reserved(), 350 * kMiB);
  allocator.deallocate(ptr);
}

TEST_F(HeapManaged, ALimitOfFreeMemoryIsWhatTheDeviceHasLeft) {
  void* const held = world.allocate(100 * kMiB);
  allocator.set_limit(MemoryLimit::parse("free"));
  EXPECT_EQ(allocator.limit_figures().limit_bytes, 256 * kMiB);
  allocator.set_limit(MemoryLimit::parse("none"));
  void* const beyond = world.allocate(200 * kMiB);
  allocator.set_limit(MemoryLimit::parse("free-8MiB"));
  EXPECT_EQ(allocator.limit_figures().limit_bytes, 300 * kMiB) << "nothing is free, and nothing need be given back";
  allocator.deallocate(held);
  allocator.deallocate(beyond);
}

TEST_F(HeapManaged, AMemoryFractionHolds) {
  allocator.set_memory_fraction(0.5);
  EXPECT_CONTAINS(out_of_memory([&] { world.allocate(150 * kMiB); }),
                  "128.00 MiB allowed by set_memory_fraction(0.5); ");
  allocator.set_memory_fraction(1);
  allocator.deallocate(world.allocate(300 * kMiB));
}

TEST(HeapManagedOptions, ThrowOnCudamallocOomRefusesWhatExceedsTheDevice) {
  World world(256 * kMiB, "heap:managed,throw_on_cudamalloc_oom:True");
  EXPECT_CONTAINS(out_of_memory([&] { world.allocate(300 * kMiB); }), "preemptively rejected");
  world.allocator.deallocate(world.allocate(256 * kMiB));
}

TEST_F(HeapManaged, AReservationMayExceedTheDevice) {
  allocator.reserve(400 * kMiB);
  EXPECT_GE(world.reserved(), 400 * kMiB);
  const std::uint64_t asked = world.count(DeviceCall::malloc_managed);
  allocator.deallocate(world.allocate(300 * kMiB));
  EXPECT_EQ(world.count(DeviceCall::malloc_managed), asked);
}

TEST_F(HeapManaged, MemoryWithoutCachingIsManagedToo) {
  allocator.set_caching_enabled(false);
  void* const ptr = world.allocate(300 * kMiB);
  EXPECT_EQ(world.count(DeviceCall::malloc_managed), 1u);
  allocator.deallocate(ptr);
  EXPECT_EQ(device.used_bytes(), 0u);
}

TEST_F(HeapManaged, MemoryCannotBeShared) {
  void* const ptr = world.allocate(kMiB);
  const std::string message = refusal([&] { allocator.share(ptr); });
  EXPECT_CONTAINS(message, "heap:managed has managed memory, which other processes cannot open");
  EXPECT_EQ(world.count(DeviceCall::ipc_export), 0u);
  allocator.deallocate(ptr);
}

TEST_F(HeapManaged, PrivatePoolsCannotSleep) {
  EXPECT_CONTAINS(refusal([&] { allocator.release_physical("weights"); }),
                  "release_physical needs heap:pages; the heap of device 0 is 'managed'");
}

TEST_F(HeapManaged, AStreamThatCapturesTakesManagedMemoryAndGivesNothingBack) {
  const Stream stream = device.new_stream();
  allocator.deallocate(world.allocate(200 * kMiB));
  void* ptr = nullptr;
  {
    const Capture capture(world, stream, {7, 0});
    ptr = world.allocate(300 * kMiB, stream);
    out_of_memory([&] { world.allocate(400 * kMiB, stream); });
  }
  EXPECT_EQ(world.count(DeviceCall::malloc_managed), 3u) << "the last of them has failed";
  EXPECT_EQ(world.count(DeviceCall::free), 0u);
  allocator.deallocate(ptr);
  allocator.release_pool(0, {7, 0});
  allocator.empty_cache();
  EXPECT_EQ(world.reserved(), 0u);
}

// Segments of the device's malloc.
class MallocProvider : public SegmentProvider {
 public:
  explicit MallocProvider(SimulatedDevice& device) : device_(device) {}
  std::optional<Address> allocate_segment(std::size_t bytes, int /*device*/, Stream /*stream*/) override {
    return device_.malloc(bytes);
  }
  void free_segment(Address address, std::size_t /*bytes*/, int /*device*/, Stream /*stream*/) override {
    device_.free(address);
  }

 private:
  SimulatedDevice& device_;
};

TEST_F(HeapManaged, APoolWithASegmentProviderHasItsMemory) {
  allocator.create_or_retain_pool(0, {0, 9}, std::make_shared<MallocProvider>(device));
  {
    const InPool in(allocator, {0, 9});
    allocator.deallocate(world.allocate(kMiB));
  }
  EXPECT_EQ(world.count(DeviceCall::malloc), 1u);
  EXPECT_EQ(world.count(DeviceCall::malloc_managed), 0u);
  allocator.release_pool(0, {0, 9});
  allocator.empty_cache();
  EXPECT_EQ(device.used_bytes(), 0u);
}

TEST_F(HeapManaged, ARefusedFreeKeepsTheSegment) {
  allocator.deallocate(world.allocate(kMiB));
  device.set_faults({{.call = DeviceCall::free, .nth = 1, .out_of_memory = false, .code = 700}});
  EXPECT_THROW(allocator.empty_cache(), CudaError);
  EXPECT_EQ(world.reserved(), 2 * kMiB);
  allocator.empty_cache();
  EXPECT_EQ(world.reserved(), 0u);
}

TEST_F(HeapManaged, ThreadCachesServeAndCloseAboveTheSizeOfTheDevice) {
  World cached(config(), "heap:managed,thread_cache:True");
  void* const small = cached.allocate(1000);
  void* const large = cached.allocate(400 * kMiB);
  cached.allocator.deallocate(small);
  cached.allocator.deallocate(cached.allocate(1000));
  EXPECT_EQ(cached.allocator.validate(), "");
  cached.allocator.deallocate(large);
}

TEST(HeapManagedOptions, ADeviceWithoutManagedMemoryIsReportedAndUsesSegments) {
  SimulatedDevice::Config config = World::config_of(256 * kMiB);
  config.managed_memory = false;
  testing::internal::CaptureStderr();
  World world(config, "heap:managed");
  EXPECT_EQ(testing::internal::GetCapturedStderr(),
            "cachalot: GPU 0 has no managed memory with concurrent access: heap:segments is used instead of "
            "heap:managed\n");
  void* const ptr = world.allocate(kMiB);
  EXPECT_EQ(world.count(DeviceCall::malloc), 1u);
  EXPECT_FALSE(contains(out_of_memory([&] { world.allocate(300 * kMiB); }), "managed"));
  world.allocator.share(ptr);
  world.allocator.deallocate(ptr);
  EXPECT_CONTAINS(refusal([&] { world.allocator.release_physical("weights"); }), "the heap of device 0 is 'segments'");
}

TEST_F(HeapManaged, TheHeapCannotChangeAtRunTime) {
  EXPECT_CONTAINS(refusal([&] { allocator.configure("heap:segments"); }), "the heap is 'managed'");
  EXPECT_EQ(allocator.options().heap, HeapKind::managed);
}

}  // namespace
}  // namespace cachalot
