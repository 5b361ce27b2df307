#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "tests/allocator/testing.h"

namespace cachalot {
namespace {

const PoolUsage& pool_of(const DeviceUsage& usage, PoolId id) {
  const auto found = std::ranges::find(usage.pools, id, &PoolUsage::pool);
  EXPECT_NE(found, usage.pools.end());
  return *found;
}

TEST(DeviceUsage, HasTheDefaultPoolAloneAtFirst) {
  World world;
  const DeviceUsage usage = world.allocator.device_usage();
  ASSERT_EQ(usage.pools.size(), 1u);
  EXPECT_TRUE(usage.pools[0].pool.is_default());
  EXPECT_EQ(usage.pools[0].reserved_bytes, 0u);
  EXPECT_EQ(usage.pools[0].used_bytes(), 0u);
  EXPECT_THROW(static_cast<void>(world.allocator.device_usage(1)), InvalidArgument);
}

// On every heap: the used memory is the active memory, and pools add up to the device.
TEST(DeviceUsage, PoolsAddUpToTheStatistics) {
  for (const char* options :
       {"heap:segments", "heap:pages", "heap:async", "heap:managed", "heap:pages,thread_cache:True"}) {
    World world(64 * kGiB, options);
    world.allocator.create_or_retain_pool(0, {7, 0});
    std::mt19937 random(1);
    std::vector<void*> live;
    for (int i = 0; i < 400; ++i) {
      const bool is_private = i % 5 == 0;
      if (is_private)
        world.allocator.begin_allocate_to_pool(
            0, {7, 0}, [](Stream) { return true; }, RedirectFor::thread);
      live.push_back(world.allocate(1 + random() % (4 * kMiB)));
      if (is_private) world.allocator.end_allocate_to_pool(0, {7, 0});
      if (is_private) world.allocator.release_pool(0, {7, 0});
      if (live.size() < 50) continue;
      std::swap(live[random() % live.size()], live.back());
      world.allocator.deallocate(live.back());
      live.pop_back();
    }
    world.allocator.drain_thread_caches();
    const DeviceUsage usage = world.allocator.device_usage();
    EXPECT_EQ(usage.stats, world.allocator.memory_stats());
    const Fragmentation fragmentation = world.allocator.fragmentation();
    std::size_t reserved = 0, used = 0, free = 0, blocks = 0, largest = 0;
    for (const PoolUsage& pool : usage.pools) {
      reserved += pool.reserved_bytes;
      used += pool.used_bytes();
      free += pool.free_bytes;
      blocks += pool.free_blocks;
      largest = std::max(largest, pool.largest_free_bytes);
    }
    EXPECT_EQ(reserved, world.reserved()) << options;
    EXPECT_EQ(used, world.active()) << options;
    EXPECT_EQ(free, fragmentation.free_bytes) << options;
    EXPECT_EQ(blocks, fragmentation.free_blocks) << options;
    EXPECT_EQ(largest, fragmentation.largest_free_bytes) << options;
    EXPECT_GT(pool_of(usage, {7, 0}).used_bytes(), 0u) << options;
    for (void* ptr : live) world.allocator.deallocate(ptr);
  }
}

TEST(DeviceUsage, TellsWhatIsAsleep) {
  World world(64 * kGiB, "heap:pages");
  world.allocator.begin_tagged("weights");
  void* const weights = world.allocate(100 * kMiB);
  world.allocator.end_tagged("weights");
  EXPECT_EQ(pool_of(world.allocator.device_usage(), {1, 1}).used_bytes(), 100 * kMiB);
  world.allocator.release_physical("weights");
  const DeviceUsage usage = world.allocator.device_usage();
  const PoolUsage& pool = pool_of(usage, {1, 1});
  EXPECT_EQ(pool.tag, "weights");
  EXPECT_TRUE(pool.is_asleep);
  EXPECT_EQ(pool.asleep_bytes, 100 * kMiB);
  EXPECT_EQ(pool.reserved_bytes, 0u);
  EXPECT_EQ(pool.asleep_bytes, world.allocator.tags()[0].asleep_bytes);
  world.allocator.restore_physical("weights");
  EXPECT_EQ(pool_of(world.allocator.device_usage(), {1, 1}).asleep_bytes, 0u);
  world.allocator.deallocate(weights);
}

}  // namespace
}  // namespace cachalot
