// A program of C++17 that uses the library: values of the public types go both ways between it and code of C++20.
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <unordered_set>
#include <vector>

#include "cachalot/caching_allocator.h"
#include "cachalot/cub_scratch.h"
#include "cachalot/kernels.h"
#include "cachalot/leak_detector.h"
#include "cachalot/pool_set.h"
#include "cachalot/simulated_device.h"
#include "cachalot/slot_pool.h"

static_assert(__cplusplus == 201703L, "this file is compiled as C++17");

namespace cachalot::testing {
namespace {

struct World {
  std::shared_ptr<SimulatedDevice> device = std::make_shared<SimulatedDevice>();
  CachingAllocator allocator{{device}};
};

TEST(Cpp17, AllocatesAndReadsStatistics) {
  World world;
  void* const p = world.allocator.allocate(1000);
  const DeviceStats stats = world.allocator.memory_stats();
  EXPECT_EQ(stats.requested_bytes.all.current, 1000);
  EXPECT_EQ(stats.allocated_bytes.all.current, 1024);
  EXPECT_TRUE(stats == world.allocator.memory_stats());
  world.allocator.deallocate(p);
  EXPECT_TRUE(stats != world.allocator.memory_stats());
  EXPECT_FALSE(stats.requested_bytes.all == world.allocator.memory_stats().requested_bytes.all);
  const Snapshot snapshot = world.allocator.snapshot();
  ASSERT_EQ(snapshot.segments.size(), 1u);
  EXPECT_TRUE(snapshot.segments[0].segment_pool_id == PoolId());
  EXPECT_EQ(world.allocator.validate(), "");
}

std::size_t reserved_by(const AllocatorFigures& figures) { return figures.memory_reserved(); }

TEST(Cpp17, PassesOneGroupOfTheAllocator) {
  World world;
  world.allocator.deallocate(world.allocator.allocate(1000));
  EXPECT_EQ(reserved_by(world.allocator), std::size_t{2} << 20);
}

TEST(Cpp17, ComparesOptions) {
  const Options pages = parse_options("heap:pages");
  EXPECT_TRUE(pages == parse_options("heap:pages"));
  EXPECT_TRUE(pages != Options());
}

TEST(Cpp17, OrdersPools) {
  const std::map<PoolId, int> pools = {{{1, 0}, 1}, {{0, 1}, 2}, {{0, 0}, 0}};
  EXPECT_EQ(pools.begin()->second, 0);
  EXPECT_EQ(pools.rbegin()->second, 1);
  EXPECT_TRUE((PoolId{0, 1} < PoolId{1, 0}));
  EXPECT_TRUE((PoolId{1, 0} > PoolId{0, 1}));
  EXPECT_TRUE((PoolId{1, 1} >= PoolId{1, 1} && PoolId{1, 1} <= PoolId{1, 1} && PoolId{1, 1} != PoolId{1, 2}));
}

TEST(Cpp17, PassesSpans) {
  World world;
  void* const p = world.allocator.allocate(4096);
  const auto address = reinterpret_cast<Address>(p);
  const auto kernels = host_kernels(world.device);
  kernels->fill_pattern(nullptr, {{address, 1024, 1}, {address + 2048, 1024, 2}});
  EXPECT_TRUE(kernels->verify_pattern(nullptr, std::vector<PatternSpan>{{address, 1024, 1}}).empty());
  kernels->move_blocks(nullptr, {{address, address + 1024, 1024}});
  const std::vector<PatternMismatch> expected = {{0, 0}};
  EXPECT_TRUE(kernels->verify_pattern(nullptr, std::vector<PatternSpan>{{address + 2048, 1024, 1}}) == expected);
  world.allocator.deallocate(p);
}

TEST(Cpp17, TakesCallStacks) {
  CallStack stacks[2];
  for (CallStack& stack : stacks) stack = CallStack::capture(CallStack::Frames::native);
  EXPECT_FALSE(stacks[0].return_addresses().empty());
  EXPECT_TRUE(stacks[0] == stacks[1]);
  EXPECT_TRUE(stacks[0] != CallStack());
  EXPECT_EQ((std::unordered_set<CallStack>{stacks[0], stacks[1]}.size()), 1u);
}

TEST(Cpp17, PoolsTensors) {
  World world;
  PoolSet pools(world.allocator, std::size_t{1} << 30);
  const TensorSpec spec = {{100, 100}, DType::float32};
  const PooledTensor tensor = pools.acquire(spec);
  EXPECT_TRUE(tensor.spec() == spec);
  EXPECT_TRUE(tensor.spec() != TensorSpec());
  EXPECT_EQ(pools.stats(spec).live, 1u);
}

TEST(Cpp17, TakesSlotsOnTheHost) {
  World world;
  const SlotPool pool(world.allocator, 100, 16);
  EXPECT_EQ(pool.counters().live, 0u);
}

TEST(Cpp17, GetsTheLibrarysExceptions) {
  World world;
  EXPECT_THROW(world.allocator.allocate(std::size_t{1} << 50), OutOfMemory);
  EXPECT_THROW(world.allocator.deallocate(&world), InvalidArgument);
  EXPECT_THROW(world.device->free(1), CudaError);
}

}  // namespace
}  // namespace cachalot::testing
