// Tests of allowed driver behaviour that kinder worlds do not show: a bug planted there must not pass the random
// programs unnoticed.
#include <gtest/gtest.h>

#include <cstdint>
#include <memory>

#include "tests/allocator/testing.h"

namespace cachalot {
namespace {

constexpr std::int64_t kForLong = 10'000'000;  // µs

// A world that throws where memory is handed out too early, and what a program does there.
struct CheckedWorld : World {
  explicit CheckedWorld(const char* options = "") : World(config(), options) {}

  static SimulatedDevice::Config config() {
    SimulatedDevice::Config config = World::config_of(64 * kGiB);
    config.check_hazards = true;
    return config;
  }
  void use(std::size_t bytes, Stream stream, std::int64_t microseconds = 0) {
    void* const block = allocate(bytes, stream);
    device->handed_out(address(block), bytes, stream);
    device->launch(stream, microseconds * 1000, {{address(block), bytes}});
    device->given_back(address(block));
    allocator.deallocate(block);
  }
};

// CUDA gives the handle of a stream that was destroyed to the next one.
TEST(DriverRules, AHandleMayBeAnotherStreams) {
  for (const char* options : {"heap:segments", "heap:pages"}) {
    CheckedWorld world(options);
    const Stream first = world.device->new_stream();
    world.use(64 * kMiB, first, kForLong);
    world.device->stream_destroy(first);
    const Stream second = world.device->new_stream();
    ASSERT_EQ(second, first);
    world.use(64 * kMiB, second);
    EXPECT_EQ(world.device->dead_stream_calls(), 0u);
  }
}

// The code is also that of a reset, after which nothing would use the block.
TEST(DriverRules, ADestroyedStreamMayAnswerWithTheCodeOfAReset) {
  CheckedWorld world;
  const Stream busy = world.device->new_stream();
  void* const block = world.allocate(8 * kMiB);
  world.allocator.record_stream(block, world.device->new_stream());
  world.allocator.record_stream(block, busy);
  world.launch(busy);
  world.device->set_faults({{.call = DeviceCall::event_record, .out_of_memory = false, .code = 709, .repeat = true}});
  world.allocator.deallocate(block);
  EXPECT_TRUE(world.device->stream_query(busy));
}

// The end of another stream's work may depend on what the waiting stream has yet to do.
TEST(DriverRules, AWaitMayNeverEnd) {
  CheckedWorld world("heap:pages,cross_stream:wait,immortal_streams:True");
  const Stream a = world.device->new_stream();
  const Stream b = world.device->new_stream();
  world.use(64 * kMiB, a);
  world.device->launch(a, kForLong * 1000);
  world.use(64 * kMiB, b);
  EXPECT_EQ(world.device->stream_ready_ns(b), world.device->clock_ns());
}

// Its first call makes a context, of hundreds of MiB.
TEST(DriverRules, ADeviceMayNotBeInUse) {
  std::shared_ptr<SimulatedDevice> device;
  {
    const World world(64 * kGiB, "heap:pages");
    device = world.device;
  }
  EXPECT_EQ(device->count(DeviceCall::synchronize), 0u);
}

// Mappings need memory, too.
TEST(DriverRules, AMappingMayLackMemory) {
  World world(64 * kGiB, "heap:pages");
  for (const DeviceCall call : {DeviceCall::map, DeviceCall::set_access}) {
    world.device->set_faults({{.call = call}});
    world.allocator.deallocate(world.allocate(64 * kMiB));
    EXPECT_EQ(world.device->faults_injected(), call == DeviceCall::map ? 1u : 2u);
    world.allocator.empty_cache();
  }
}

}  // namespace
}  // namespace cachalot
