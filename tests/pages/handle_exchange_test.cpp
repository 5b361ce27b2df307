// Large idle handles become handles of one page, at a step of tidy or by the thread of the background.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <random>
#include <thread>
#include <vector>

#include "base/bytes.h"
#include "tests/allocator/forwarding_device.h"
#include "tests/pages/testing.h"
#include "tests/scale.h"

namespace cachalot {
namespace {

constexpr const char* kPages = "heap:pages,immortal_streams:True,thread_cache:False";
constexpr const char* kWithThread = "heap:pages,immortal_streams:True,thread_cache:False,background_thread:True";
constexpr std::size_t kBlock = 16 * kMiB;  // a handle of eight pages on a device of 64 GiB

// One idle handle of eight pages.
void* make_idle(World& world, Stream stream = nullptr, std::int64_t work_us = 0) {
  Program program(world);
  void* ptr = program.allocate(kBlock, stream, work_us);
  program.free(ptr);
  return ptr;
}

TEST(HandleExchange, ReplacesAnIdleHandleByOneForEachPageAtTheSameAddresses) {
  World world(checked(), kPages);
  void* const before = make_idle(world);
  EXPECT_TRUE(world.allocator.tidy());
  EXPECT_EQ(world.allocator.validate(), "");
  EXPECT_EQ(world.count(DeviceCall::create), 9u);
  EXPECT_EQ(world.count(DeviceCall::release), 1u);
  EXPECT_EQ(world.count(DeviceCall::set_access), 2u);
  EXPECT_EQ(world.device->live_mappings(), 8u);
  EXPECT_EQ(world.reserved(), kBlock);
  EXPECT_EQ(world.device->peak_used_bytes(), kBlock);
  EXPECT_FALSE(world.allocator.tidy());
  Program program(world);
  void* const after = program.allocate(kBlock);
  EXPECT_EQ(after, before);
  EXPECT_EQ(world.device->memory_at(address(after))->range.bytes, 2 * kMiB);
  program.free(after);
}

TEST(HandleExchange, LetsIdlePagesServeRequestsThatTheirHandleDidNotFit) {
  for (const bool tidies : {false, true}) {
    World world(checked(), kPages);
    Program program(world);
    std::vector<void*> blocks;
    for (int i = 0; i < 4; ++i) blocks.push_back(program.allocate(kBlock));
    for (void* block : blocks) program.free(block);
    while (tidies && world.allocator.tidy()) continue;
    // Every second page is live: free memory comes in pieces of one page.
    blocks.clear();
    for (int i = 0; i < 32; ++i) blocks.push_back(program.allocate(2 * kMiB));
    for (int i = 0; i < 32; i += 2) program.free(blocks[static_cast<std::size_t>(i)]);
    void* const large = program.allocate(28 * kMiB);
    EXPECT_EQ(world.reserved() == 4 * kBlock, tidies);
    program.free(large);
    for (int i = 1; i < 32; i += 2) program.free(blocks[static_cast<std::size_t>(i)]);
  }
}

TEST(HandleExchange, WaitsForTheWorkThatUsedTheHandle) {
  World world(checked(), kPages);
  make_idle(world, nullptr, /*work_us=*/1000);
  EXPECT_FALSE(world.allocator.tidy());  // records an event
  world.pass(500);
  EXPECT_FALSE(world.allocator.tidy());
  world.pass(600);
  EXPECT_TRUE(world.allocator.tidy());
}

TEST(HandleExchange, RecordsNoEventOnAStreamThatMayHaveBeenDestroyed) {
  World world(checked(), "heap:pages,thread_cache:False");
  make_idle(world);
  EXPECT_FALSE(world.allocator.tidy());
  EXPECT_EQ(world.count(DeviceCall::event_record), 0u);
}

TEST(HandleExchange, LeavesLiveAndSmallHandlesAndThoseOfPrivatePoolsAlone) {
  World world(checked(), kPages);
  Program program(world);
  void* const live = program.allocate(kBlock);
  {
    const InPool pool(world.allocator, kPool);
    make_idle(world);
    EXPECT_FALSE(world.allocator.tidy());
  }
  program.free(live);
  EXPECT_TRUE(world.allocator.tidy());
  const std::uint64_t creates = world.count(DeviceCall::create);
  EXPECT_FALSE(world.allocator.tidy());
  EXPECT_EQ(world.count(DeviceCall::create), creates);
}

TEST(HandleExchange, DoesNothingDuringACapture) {
  World world(checked(), kPages);
  make_idle(world);
  const Stream stream = world.device->stream();
  {
    const Capture capture(world, stream, kPool);
    EXPECT_FALSE(world.allocator.tidy());
  }
  EXPECT_TRUE(world.allocator.tidy());
}

TEST(HandleExchange, LeavesASteadyProgramAlone) {
  World world(checked(), kPages);
  make_idle(world);
  world.pass(1'000'001);
  EXPECT_FALSE(world.allocator.tidy());
  Program program(world);
  program.free(program.allocate(2 * kBlock));  // grows
  EXPECT_TRUE(world.allocator.tidy());
}

TEST(HandleExchange, DoesNothingForOtherHeaps) {
  World world(World::config_of(kGiB));
  world.allocator.deallocate(world.allocate(kBlock));
  EXPECT_FALSE(world.allocator.tidy());
}

TEST(HandleExchange, TellsTrackersThatTheMemoryBehindTheAddressesIsAnother) {
  World world(checked(), kPages);
  make_idle(world);
  std::vector<Change::Action> actions;
  world.allocator.add_change_tracker([&](const Change& change) { actions.push_back(change.action); });
  EXPECT_TRUE(world.allocator.tidy());
  EXPECT_EQ(actions, (std::vector{Change::Action::segment_unmap, Change::Action::segment_map}));
}

class ExchangeFailures : public testing::TestWithParam<FailingCall> {};

TEST_P(ExchangeFailures, LoseNoByteInTheBooks) {
  for (std::uint64_t nth = 1; nth <= 8; ++nth) {
    World world(checked(), kPages);
    Program program(world);
    void* const live = program.allocate(kBlock);
    make_idle(world);
    make_idle(world, world.device->stream());
    world.device->set_faults({{.call = GetParam().call, .nth = nth, .out_of_memory = GetParam().out_of_memory}});
    while (world.allocator.tidy()) continue;
    EXPECT_EQ(world.allocator.validate(), "");
    world.device->set_faults({});
    void* const again = program.allocate(3 * kBlock);
    EXPECT_EQ(world.allocator.validate(), "");
    program.free(again);
    program.free(live);
    world.allocator.empty_cache();
    EXPECT_EQ(world.reserved(), 0u);
    EXPECT_EQ(world.device->used_bytes(), 0u);
  }
}

INSTANTIATE_TEST_SUITE_P(Calls, ExchangeFailures,
                         testing::Values(FailingCall{DeviceCall::unmap, false}, FailingCall{DeviceCall::release, false},
                                         FailingCall{DeviceCall::create, true}, FailingCall{DeviceCall::create, false},
                                         FailingCall{DeviceCall::map, false},
                                         FailingCall{DeviceCall::set_access, false},
                                         FailingCall{DeviceCall::event_record, false}),
                         [](const auto& test) { return name_of(test); });

// Every hazard is checked while handles are exchanged between the operations of several streams.
TEST(HandleExchange, RandomProgramsOnSeveralStreamsMeetNoHazard) {
  const std::uint64_t seed = seed_or(7);
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937_64 random(seed);
  World world(checked(), kPages);
  Program program(world);
  const std::vector<Stream> streams = {nullptr, world.device->stream(), world.device->stream()};
  std::vector<void*> live;
  const auto below = [&](std::size_t end) { return static_cast<std::size_t>(random() % end); };
  int exchanged = 0;
  for (std::size_t i = 0; i < scaled(4000); ++i) {
    if (live.size() > 24 || (!live.empty() && below(2) == 0)) {
      std::swap(live[below(live.size())], live.back());
      program.free(live.back());
      live.pop_back();
    } else {
      const std::size_t bytes = kKiB << below(16);
      live.push_back(program.allocate(bytes + below(bytes), streams[below(3)], static_cast<std::int64_t>(below(2000))));
    }
    world.pass(static_cast<std::int64_t>(below(300)));
    if (below(4) == 0) exchanged += world.allocator.tidy() ? 1 : 0;
    if (i % 50 == 0) {
      ASSERT_EQ(world.allocator.validate(), "") << i;
    }
  }
  EXPECT_GT(exchanged, 0);
  for (void* ptr : live) program.free(ptr);
}

// --- the thread ---------------------------------------------------------------------------------------------------------

struct NothingAround {
  explicit NothingAround(const Device& /*device*/) {}
};

class ThreadedDevice : public ForwardingDevice<ThreadedDevice, NothingAround> {
 public:
  using ForwardingDevice::ForwardingDevice;
  bool allows_background_threads() const override { return true; }
};

struct ThreadedWorld {
  explicit ThreadedWorld(const std::string& options)
      : device(std::make_shared<SimulatedDevice>(World::config_of(64 * kGiB))),
        allocator({std::make_shared<ThreadedDevice>(device)}, parse_options(options)) {}

  // Returns whether the thread has released a handle after a while.
  bool has_exchanged() const {
    for (int i = 0; i < 5000 && device->count(DeviceCall::release) == 0; ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return device->count(DeviceCall::release) != 0;
  }

  std::shared_ptr<SimulatedDevice> device;
  CachingAllocator allocator;
};

TEST(BackgroundThread, ExchangesIdleHandlesWhileOtherThreadsAllocate) {
  ThreadedWorld world(kWithThread);
  std::vector<std::thread> threads;
  for (int i = 0; i < 3; ++i) {
    threads.emplace_back([&, i] {
      std::mt19937 random(static_cast<unsigned>(i));
      std::vector<void*> live(8);
      for (std::size_t round = 0; round < scaled(2000); ++round) {
        void*& ptr = live[random() % live.size()];
        world.allocator.deallocate(ptr);
        ptr = world.allocator.allocate(kKiB << random() % 15);
      }
      for (void* ptr : live) world.allocator.deallocate(ptr);
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_TRUE(world.has_exchanged());
  EXPECT_EQ(world.allocator.validate(), "");
}

TEST(BackgroundThread, IsOffByDefault) {
  ThreadedWorld world(kPages);
  world.allocator.deallocate(world.allocator.allocate(kBlock));
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_EQ(world.device->live_mappings(), 1u);
  EXPECT_TRUE(world.allocator.tidy());
}

bool is_forked_child = false;

TEST(BackgroundThread, IsNotMissedByAForkedChildThatExits) {
  ThreadedWorld world(kWithThread);
  world.allocator.deallocate(world.allocator.allocate(kBlock));
  EXPECT_TRUE(world.has_exchanged());
  const pid_t child = fork();
  if (child == 0) {
    is_forked_child = true;
    std::exit(0);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

}  // namespace
}  // namespace cachalot

// LeakSanitizer asks it. Nothing in a forked child refers to what a step that was under way had allocated: the stack of its
// thread is not there.
extern "C" int __lsan_is_turned_off();   // NOLINT(bugprone-reserved-identifier,cert-*): the sanitizer's name
extern "C" int __lsan_is_turned_off() {  // NOLINT(bugprone-reserved-identifier,cert-*)
  return cachalot::is_forked_child ? 1 : 0;
}
