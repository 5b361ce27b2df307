// Pinned host memory: the receiver of a buffer may write to it at once, so streams that use it keep it.
#include <gtest/gtest.h>

#include <cstddef>
#include <cstring>
#include <memory>
#include <thread>
#include <vector>

#include "cachalot/pinned_host_allocator.h"
#include "tests/allocator/testing.h"

namespace cachalot {
namespace {

struct HostWorld {
  explicit HostWorld(std::string_view options = "") : host(device, parse_options(options)) {}
  HostWorld(const HostWorld&) = delete;
  HostWorld& operator=(const HostWorld&) = delete;
  ~HostWorld() { EXPECT_EQ(host.cache().validate(), ""); }

  // A copy that uses the buffer for a millisecond.
  void* copied_on(Stream stream) {
    void* const buffer = host.allocate(kBytes);
    device->launch(stream, 1'000'000);
    host.record_stream(buffer, stream);
    return buffer;
  }
  void finish() { device->advance(2'000'000); }

  static constexpr std::size_t kBytes = 100 * kKiB;
  std::shared_ptr<SimulatedDevice> device = std::make_shared<SimulatedDevice>(World::config_of(kGiB));
  PinnedHostAllocator host;
};

TEST(PinnedHost, IsMemoryThatTheHostWrites) {
  HostWorld world;
  auto* const buffer = static_cast<unsigned char*>(world.host.allocate(3 * kMiB));
  std::memset(buffer, 7, 3 * kMiB);
  EXPECT_EQ(buffer[3 * kMiB - 1], 7);
  EXPECT_EQ(address(buffer) % 512, 0u);
  EXPECT_EQ(world.host.memory_allocated(), 3 * kMiB);
  EXPECT_EQ(world.host.memory_reserved(), 20 * kMiB);
  EXPECT_EQ(world.host.allocate(0), nullptr);
  world.host.deallocate(buffer);
  world.host.deallocate(nullptr);
}

TEST(PinnedHost, IsPinnedOnceAndUsedAgain) {
  HostWorld world;
  void* const first = world.host.allocate(HostWorld::kBytes);
  world.host.deallocate(first);
  EXPECT_EQ(world.host.allocate(HostWorld::kBytes), first);
  EXPECT_EQ(world.device->count(DeviceCall::host_malloc), 1u);
  world.host.deallocate(first);
  world.host.empty_cache();
  EXPECT_EQ(world.device->count(DeviceCall::host_free), 1u);
  EXPECT_EQ(world.host.memory_reserved(), 0u);
}

TEST(PinnedHost, IsNotHandedOutWhileAStreamCopies) {
  HostWorld world;
  const Stream stream = world.device->new_stream();
  void* const buffer = world.copied_on(stream);
  world.host.deallocate(buffer);
  void* const other = world.host.allocate(HostWorld::kBytes);
  EXPECT_NE(other, buffer);
  EXPECT_EQ(world.host.memory_stats().active.all.current, 2);
  world.finish();
  EXPECT_EQ(world.host.allocate(HostWorld::kBytes), buffer);
  EXPECT_EQ(world.device->count(DeviceCall::synchronize), 0u);
}

TEST(PinnedHost, WaitsForTheLegacyDefaultStreamToo) {
  HostWorld world;
  void* const buffer = world.copied_on(nullptr);
  world.host.deallocate(buffer);
  EXPECT_NE(world.host.allocate(HostWorld::kBytes), buffer);
  world.finish();
  EXPECT_EQ(world.host.allocate(HostWorld::kBytes), buffer);
}

TEST(PinnedHost, WaitsForEachOfSeveralStreams) {
  HostWorld world;
  const Stream shorter = world.device->new_stream();
  const Stream longer = world.device->new_stream();
  void* const buffer = world.copied_on(shorter);
  world.device->launch(longer, 5'000'000);
  world.host.record_stream(buffer, longer);
  world.host.deallocate(buffer);
  world.finish();
  EXPECT_NE(world.host.allocate(HostWorld::kBytes), buffer);
  world.device->advance(5'000'000);
  EXPECT_EQ(world.host.allocate(HostWorld::kBytes), buffer);
}

TEST(PinnedHost, CannotBeFreedWhileAStreamThatUsesItCaptures) {
  HostWorld world;
  const Stream stream = world.device->new_stream();
  void* const buffer = world.copied_on(stream);
  world.device->begin_capture(stream);
  EXPECT_CONTAINS(refusal([&] { world.host.deallocate(buffer); }), "captures a graph");
  EXPECT_EQ(world.host.memory_allocated(), round_up(HostWorld::kBytes, 512));
  EXPECT_FALSE(world.device->is_capture_spoilt(stream));
  world.device->end_capture(stream);
  world.host.deallocate(buffer);
  EXPECT_EQ(world.host.memory_allocated(), 0u);
}

TEST(PinnedHost, ServesWhileAStreamThatDoesNotUseItCaptures) {
  HostWorld world;
  const Stream captures = world.device->new_stream();
  world.host.deallocate(world.copied_on(world.device->new_stream()));
  world.device->begin_capture(captures);
  void* const buffer = world.host.allocate(HostWorld::kBytes);
  EXPECT_FALSE(world.device->is_capture_spoilt(captures));
  world.device->end_capture(captures);
  world.host.deallocate(buffer);
}

TEST(PinnedHost, SaysHowMuchWasWantedWhenThereIsNoMore) {
  HostWorld world;
  world.device->set_faults({{.call = DeviceCall::host_malloc, .nth = 1, .repeat = true}});
  const std::string message = out_of_memory([&] { world.host.allocate(3 * kMiB); });
  EXPECT_CONTAINS(message, "out of pinned host memory: tried to allocate 3.00 MiB");
  EXPECT_EQ(world.host.memory_reserved(), 0u);
  world.device->set_faults({});
  EXPECT_NE(world.host.allocate(3 * kMiB), nullptr);
}

TEST(PinnedHost, GivesTheCacheBackBeforeItsLimitRefuses) {
  HostWorld world("pinned_limit_mb:64");
  EXPECT_EQ(world.host.limit(), 64 * kMiB);
  world.host.deallocate(world.host.allocate(40 * kMiB));
  void* const buffer = world.host.allocate(64 * kMiB);
  EXPECT_EQ(world.host.memory_reserved(), 64 * kMiB);
  const std::string message = out_of_memory([&] { world.host.allocate(512); });
  EXPECT_CONTAINS(message,
                  "tried to allocate 512 bytes; 64.00 MiB is allocated, 64.00 MiB is reserved of a limit of 64.00");
  EXPECT_EQ(world.host.memory_allocated(), 64 * kMiB);
  world.host.deallocate(buffer);
  EXPECT_NE(world.host.allocate(512), nullptr);
}

TEST(PinnedHost, ServesExactlyTheLimitWhateverItIs) {
  for (std::size_t mib = 2; mib < 200; mib += 7) {
    HostWorld world;
    world.host.set_limit(mib * kMiB);
    while (world.host.memory_reserved() + 2 * kMiB <= mib * kMiB) world.host.allocate(kMiB);
    EXPECT_EQ(world.host.memory_reserved(), mib / 2 * 2 * kMiB);
    EXPECT_CONTAINS(out_of_memory([&] { world.host.allocate(2 * kMiB); }), "limit");
  }
}

TEST(PinnedHost, LiftsItsLimitAndRefusesOneBelowASegment) {
  HostWorld world("pinned_limit_mb:2");
  EXPECT_CONTAINS(refusal([&] { world.host.set_limit(2 * kMiB - 1); }), "a limit of 2097151 bytes of pinned memory");
  EXPECT_EQ(world.host.limit(), 2 * kMiB);
  world.host.set_limit(Options::kUnlimited);
  EXPECT_NE(world.host.allocate(30 * kMiB), nullptr);
  EXPECT_FALSE(contains(out_of_memory([&] { world.host.allocate(std::size_t{1} << 50); }), "limit"));
}

TEST(PinnedHost, TimesTheCallsThatPin) {
  HostWorld world;
  world.host.deallocate(world.host.allocate(3 * kMiB));
  void* const large = world.host.allocate(40 * kMiB);
  const PinTimes times = world.host.pin_times();
  EXPECT_EQ(times.pin.count, 2);
  EXPECT_EQ(times.unpin.count, 0);
  EXPECT_GE(times.pin.total_us, times.pin.max_us);
  EXPECT_GE(times.pin.max_us, times.pin.min_us);
  EXPECT_EQ(times.pins_by_size[25], 1);  // 20 MiB
  EXPECT_EQ(times.pins_by_size[26], 1);  // 40 MiB
  world.host.deallocate(large);
  world.host.empty_cache();
  EXPECT_EQ(world.host.pin_times().unpin.count, 2);
  world.host.reset_accumulated_stats();
  world.host.reset_peak_stats();
  EXPECT_EQ(world.host.pin_times().pin.count, 0);
  EXPECT_EQ(world.host.pin_times().pin.max_us, 0);
  EXPECT_EQ(world.host.pin_times().pins_by_size[25], 0);
  EXPECT_EQ(world.host.memory_stats().reserved_bytes.all.peak, 0);
  EXPECT_EQ(world.host.memory_stats().reserved_bytes.all.allocated, 0);
}

TEST(PinnedHost, RefusesWhatIsNotItsOwn) {
  HostWorld world;
  int elsewhere = 0;
  EXPECT_CONTAINS(refusal([&] { world.host.deallocate(&elsewhere); }), "live");
  EXPECT_CONTAINS(refusal([&] { world.host.record_stream(&elsewhere, nullptr); }), "live");
  void* const buffer = world.host.allocate(512);
  world.host.deallocate(buffer);
  EXPECT_CONTAINS(refusal([&] { world.host.deallocate(buffer); }), "live");
  EXPECT_CONTAINS(refusal([&] { PinnedHostAllocator host(world.device, parse_options("heap:pages")); }),
                  "heap is pages");
  EXPECT_CONTAINS(refusal([&] { PinnedHostAllocator host(world.device, parse_options("guard:True")); }),
                  "guard is True, but pinned host memory has no guard");
  EXPECT_CONTAINS(refusal([&] { PinnedHostAllocator host(world.device, parse_options("debug:True,guard:False")); }),
                  "debug is True, but pinned host memory has no guard");
  EXPECT_CONTAINS(refusal([] { PinnedHostAllocator host(nullptr); }), "null");
}

TEST(PinnedHost, ServesThreadsAtOnce) {
  for (const char* options : {"", "thread_cache:True"}) {
    HostWorld world(options);
    std::vector<std::thread> threads;
    for (int thread = 0; thread < 4; ++thread) {
      threads.emplace_back([&world, thread] {
        const Stream stream = world.device->new_stream();
        for (int i = 0; i < 500; ++i) {
          auto* const buffer = static_cast<int*>(world.host.allocate(1000));
          *buffer = thread;
          if (i % 3 == 0) world.host.record_stream(buffer, stream);
          std::this_thread::yield();
          EXPECT_EQ(*buffer, thread);
          world.host.deallocate(buffer);
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    world.finish();
    world.host.empty_cache();
    EXPECT_EQ(world.host.memory_allocated(), 0u);
    EXPECT_EQ(world.host.memory_reserved(), 0u);
  }
}

}  // namespace
}  // namespace cachalot
