// Programs under guard: devices that fail, kernels that do not compute, random programs, threads.
#include <gtest/gtest.h>

#include <atomic>
#include <random>
#include <thread>

#include "tests/guard/testing.h"

namespace cachalot {
namespace {

class GuardedPrograms : public testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(Heaps, GuardedPrograms, testing::Values("heap:segments", "heap:pages"));

// ---- Failures ------------------------------------------------------------------------------------------------------

TEST_P(GuardedPrograms, AFailingDeviceCallLosesNothing) {
  for (std::uint64_t nth = 1; nth < 300; ++nth) {
    const SmallQuarantine small;
    GuardedWorld world(GetParam());
    const Stream own = world.device->new_stream();
    const Stream other = world.device->new_stream();
    std::vector<void*> live;
    for (int i = 0; i < 2; ++i) world.allocator.deallocate(world.allocate(400'000, own));
    world.device->set_faults({Fault{.nth = nth, .out_of_memory = false, .code = 700}});
    bool refused = false;
    for (int i = 0; i < 3; ++i) {
      try {
        live.push_back(world.allocate(300'000, own));
        world.allocator.record_stream(live.back(), other);
        world.allocator.deallocate(live.back());
        live.pop_back();
      } catch (const CudaError&) {
        refused = true;
      }
      ASSERT_EQ(world.allocator.validate(), "") << nth;
    }
    world.device->set_faults({});
    for (void* const block : live) world.allocator.deallocate(block);
    ASSERT_TRUE(AllocatorGuard(world.allocator).check().empty()) << nth;
    world.allocator.empty_cache();
    ASSERT_EQ(world.allocated(), 0u) << nth;
    if (!refused) return;
  }
  FAIL() << "calls went on failing";
}

TEST(GuardedProgram, AReportIsDeliveredThoughTheFreeFails) {
  GuardedWorld world;
  void* const block = world.allocate(1000);
  smash(world, block, 1000);
  world.device->set_faults({Fault{.call = DeviceCall::copy_from_host, .out_of_memory = false, .code = 700}});
  EXPECT_THROW(world.allocator.deallocate(block), CudaError);  // the poison
  EXPECT_EQ(world.take_one().offset, 1000);
  world.allocator.deallocate(block);
  EXPECT_EQ(world.allocated(), 0u);
}

// ---- Kernels -------------------------------------------------------------------------------------------------------

// The kernels do nothing, as those of a simulated runtime.
class IdleKernels final : public Kernels {
  void fill(Stream, Span<const PatternSpan>) override {}
  std::vector<PatternMismatch> verify(Stream, Span<const PatternSpan>) override { return {}; }
  void move(Stream, Span<const BlockMove>) override {}
};

TEST(GuardedProgram, KernelsThatComputeNothingGiveWayToTheHostTwin) {
  const auto device = std::make_shared<SimulatedDevice>();
  CachingAllocator allocator({device}, parse_options("guard:True"),
                             guard_factory([](std::shared_ptr<Device>) { return std::make_unique<IdleKernels>(); }));
  int heard = 0;
  AllocatorGuard(allocator).set_handler([&](const GuardReport&) { ++heard; });
  void* const block = allocator.allocate(1000);
  const unsigned char bytes[] = {1, 2, 3, 4};
  device->copy_from_host(address(block) + 1000, bytes, sizeof(bytes));
  allocator.deallocate(block);
  EXPECT_EQ(heard, 1);
}

TEST(GuardedProgram, AFactoryThatMakesNoKernelsIsRefused) {
  const auto device = std::make_shared<SimulatedDevice>();
  const Options options = parse_options("guard:True");
  EXPECT_THROW(CachingAllocator({device}, options, guard_factory(nullptr)), InvalidArgument);
  CachingAllocator allocator({device}, options,
                             guard_factory([](std::shared_ptr<Device>) { return std::unique_ptr<Kernels>(); }));
  EXPECT_EQ(refusal([&] { allocator.allocate(1000); }), "the factory of kernels made none for device 0");
  EXPECT_EQ(allocator.memory_allocated(), 0u);
}

// ---- Programs ------------------------------------------------------------------------------------------------------

// Blocks that several streams use, on a device that checks that no request gets memory which work may still use.
TEST_P(GuardedPrograms, RandomProgramsOfManyStreamsAreInOrderAndNothingIsReported) {
  SimulatedDevice::Config config = World::config_of(96 * kMiB);
  config.check_hazards = true;
  const SmallQuarantine small(4 * kMiB);
  for (unsigned seed = 1; seed <= 4; ++seed) {
    SCOPED_TRACE(seed);
    World world(config, GetParam() + ",guard:True");
    std::mt19937 random(seed);
    std::vector<Stream> streams;
    for (int i = 0; i < 3; ++i) streams.push_back(world.device->new_stream());
    const auto any_stream = [&] { return streams[random() % streams.size()]; };
    std::vector<AddressRange> live;
    const auto free_last = [&] {
      world.device->given_back(live.back().address);
      world.allocator.deallocate(reinterpret_cast<void*>(live.back().address));
      live.pop_back();
    };
    for (int i = 0; i < 400; ++i) {
      if (live.size() < 12 && random() % 5 < 3) {
        const std::size_t bytes = 1 + random() % (random() % 8 == 0 ? 6 * kMiB : 100 * kKiB);
        const Stream own = any_stream();
        void* const block = world.allocate(bytes, own);
        live.push_back({address(block), bytes});
        world.device->handed_out(address(block), bytes, own);
        world.device->launch(own, 20'000, {live.back()});
      } else if (!live.empty()) {
        std::swap(live[random() % live.size()], live.back());
        if (random() % 2 == 0) {
          const Stream other = any_stream();
          world.allocator.record_stream(reinterpret_cast<void*>(live.back().address), other);
          world.device->synchronize();  // the owner orders the two
          world.device->launch(other, 50'000, {live.back()});
        }
        free_last();
      }
      EXPECT_TRUE(i % 64 != 0 || AllocatorGuard(world.allocator).check().empty());
    }
    while (!live.empty()) free_last();
    world.allocator.empty_cache();
    EXPECT_EQ(AllocatorGuard(world.allocator).reports(), 0u);
  }
}

// ---- Threads -------------------------------------------------------------------------------------------------------

TEST_P(GuardedPrograms, ThreadsAllocateFreeAndLookAtOnce) {
  const SmallQuarantine small;
  GuardedWorld world(GetParam() + ",thread_cache:True");
  constexpr int kThreads = 4;
  constexpr int kRounds = 150;
  std::atomic<void*> handed_over{nullptr};
  std::vector<std::thread> threads;
  for (unsigned t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      std::mt19937 random(t);
      const Stream own = world.device->new_stream();
      const Stream other = world.device->new_stream();
      for (int i = 0; i < kRounds; ++i) {
        void* const block = world.allocate(1 + random() % 50'000, own);
        world.launch(own, 3);
        if (random() % 2 == 0) world.allocator.record_stream(block, other);
        void* const others = handed_over.exchange(block);
        if (others != nullptr) world.allocator.deallocate(others);
        if (t == 0 && i % 16 == 0) AllocatorGuard(world.allocator).check();
        if (t == 1 && i % 32 == 0) world.allocator.empty_cache();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  world.allocator.deallocate(handed_over.load());
  EXPECT_EQ(AllocatorGuard(world.allocator).reports(), 0u);
  world.allocator.empty_cache();
  EXPECT_EQ(world.allocated(), 0u);
}

}  // namespace
}  // namespace cachalot
