// The watch over the machine's memory, which gives cached memory of integrated GPUs back.
#include "cachalot/memory_watch.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <memory>
#include <thread>
#include <utility>

#include "base/bytes.h"
#include "cachalot/simulated_device.h"
#include "tests/allocator/forwarding_device.h"
#include "tests/device/machine_memory.h"

namespace cachalot {
namespace {

// IntegratedDevice is a simulated device of 16 GiB whose memory is the machine's; `is_integrated` false: its own.
class IntegratedDevice;
struct Nothing {
  explicit Nothing(const IntegratedDevice& /*device*/) {}
};
class IntegratedDevice final : public ForwardingDevice<IntegratedDevice, Nothing> {
 public:
  explicit IntegratedDevice(bool is_integrated) : ForwardingDevice(simulated()), is_integrated_(is_integrated) {}
  DeviceProperties properties() const override {
    DeviceProperties properties = ForwardingDevice::properties();
    properties.integrated = is_integrated_;
    properties.calls_take_time = true;
    return properties;
  }

 private:
  static std::shared_ptr<Device> simulated() {
    SimulatedDevice::Config config;
    config.memory_bytes = 16 * kGiB;
    return std::make_shared<SimulatedDevice>(config);
  }
  const bool is_integrated_;
};

struct WatchedWorld {
  explicit WatchedWorld(bool is_integrated = true, const char* options = "heap:pages")
      : allocator({std::make_shared<IntegratedDevice>(is_integrated)}, parse_options(options)) {
    machine.set_available(8 * kGiB);
    live = allocator.allocate(100 * kMiB);
    void* const freed = allocator.allocate(3 * kGiB);
    allocator.deallocate(freed);
    held = allocator.memory_reserved();
  }
  ~WatchedWorld() { allocator.deallocate(live); }
  std::size_t given() const { return held - allocator.memory_reserved(); }

  MachineMemory machine;
  CachingAllocator allocator;
  void* live = nullptr;
  std::size_t held = 0;
};

class MemoryWatched : public ::testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Heaps, MemoryWatched, ::testing::Values("heap:pages", "heap:segments"));

TEST_P(MemoryWatched, GoesBackWhenLessIsAvailableThanIsKeptForTheSystem) {
  WatchedWorld world(true, GetParam());
  MemoryWatch watch(world.allocator);
  world.machine.set_available(kGiB);
  EXPECT_EQ(watch.look(), 0u) << "as much as is kept is not too little";
  world.machine.set_available(kGiB - 100 * kMiB);
  EXPECT_GE(watch.look() + watch.given_back_bytes(), kGiB + 100 * kMiB) << "the thread may have been first";
  EXPECT_EQ(world.given(), watch.given_back_bytes());
  EXPECT_EQ(world.allocator.memory_allocated(), 100 * kMiB);
  world.machine.set_available(3 * kGiB);
  EXPECT_EQ(watch.look(), 0u);
  void* const again = world.allocator.allocate(3 * kGiB);
  EXPECT_GE(world.allocator.memory_reserved(), 3 * kGiB);
  world.allocator.deallocate(again);
  EXPECT_EQ(world.allocator.validate(), "");
}

TEST_P(MemoryWatched, GoesBackWhereProcessesWaitForIt) {
  WatchedWorld world(true, GetParam());
  world.machine.set_stalled("10.00");
  MemoryWatch watch(world.allocator);
  EXPECT_EQ(watch.look(), 0u) << "a half of the memory is available: these processes have limits of their own";
  world.machine.set_stalled("9.99");
  world.machine.set_available(2 * kGiB - kMiB);
  EXPECT_EQ(watch.look(), 0u);
  world.machine.set_stalled("10.00");
  watch.look();
  EXPECT_GE(world.given(), 3 * kGiB);
  world.allocator.deallocate(world.allocator.allocate(3 * kGiB));
  EXPECT_EQ(watch.look(), 0u) << "the figure is that of the ten seconds before";
}

TEST(MemoryWatch, LooksByItself) {
  WatchedWorld world;
  const MemoryWatch watch(world.allocator);
  world.machine.set_available(kMiB);
  for (int i = 0; i < 500 && world.given() == 0; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_GE(world.given(), kGiB);
}

TEST(MemoryWatch, LeavesGpusWithMemoryOfTheirOwn) {
  WatchedWorld world(/*is_integrated=*/false);
  MemoryWatch watch(world.allocator);
  world.machine.set_available(kMiB);
  world.machine.set_stalled("99.00");
  EXPECT_EQ(watch.look(), 0u);
  EXPECT_EQ(world.given(), 0u);
}

TEST(MemoryWatch, DoesNothingWhereTheSystemDoesNotTell) {
  WatchedWorld world;
  MemoryWatch watch(world.allocator);
  world.machine.remove();
  world.machine.set_stalled("99.00");
  EXPECT_EQ(watch.look(), 0u);
}

TEST(MemoryWatch, DoesNothingInAForkedChild) {
  WatchedWorld world;
  MemoryWatch watch(world.allocator);
  const pid_t child = fork();
  if (child == 0) {
    world.machine.set_available(kMiB);
    _exit(watch.look() == 0 ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  watch.look();
  EXPECT_GE(world.given(), kGiB) << "the parent goes on";
}

}  // namespace
}  // namespace cachalot
