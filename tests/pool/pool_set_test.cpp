// PoolSet: a pool a spec, and one budget.
#include "cachalot/pool_set.h"

#include <gtest/gtest.h>

#include <memory>
#include <thread>
#include <vector>

#include "tests/pool/testing.h"

namespace cachalot {
namespace {

TensorSpec spec_of(std::int64_t mib) { return {{mib << 20}, DType::int8}; }

struct SetWorld : World {
  explicit SetWorld(std::size_t budget, const TensorPoolOptions& options = {}, std::size_t device_bytes = 64 * kGiB)
      : World(device_bytes), pools(allocator, budget, options) {}
  ~SetWorld() { EXPECT_EQ(pools.validate(), ""); }
  PoolSet pools;
};

TEST(PoolSet, EachSpecHasItsOwnPool) {
  SetWorld world(100 * kMiB);
  void* const one = world.pools.acquire(spec_of(1)).data();
  void* const two = world.pools.acquire(spec_of(2)).data();
  EXPECT_EQ(world.pools.acquire(spec_of(1)).data(), one);
  EXPECT_EQ(world.pools.acquire(spec_of(2)).data(), two);
  EXPECT_EQ(world.pools.stats(spec_of(1)).acquires, 2u);
  EXPECT_EQ(world.pools.stats(spec_of(3)).acquires, 0u);
  EXPECT_EQ(world.pools.stats_by_spec().size(), 2u);
  const PoolStats all = world.pools.stats();
  EXPECT_EQ(all.acquires, 4u);
  EXPECT_EQ(all.hits, 2u);
  EXPECT_EQ(all.allocations, 2u);
  EXPECT_EQ(all.slots, 2u);
  EXPECT_EQ(all.bytes, 3 * kMiB);
  EXPECT_EQ(world.pools.bytes(), 3 * kMiB);
}

TEST(PoolSet, TheLeastRecentlyUsedPoolMakesRoom) {
  SetWorld world(10 * kMiB);
  for (const std::int64_t mib : {4, 3, 2}) world.pools.acquire(spec_of(mib));
  world.pools.acquire(spec_of(4));  // so that 3 is the oldest
  world.pools.acquire(spec_of(1));  // fits
  EXPECT_EQ(world.pools.stats(spec_of(3)).slots, 1u);
  world.pools.acquire(spec_of(3));
  world.pools.acquire(spec_of(5));  // 2 and then 4 go
  EXPECT_EQ(world.pools.stats(spec_of(2)).slots, 0u);
  EXPECT_EQ(world.pools.stats(spec_of(4)).slots, 0u);
  EXPECT_EQ(world.pools.stats(spec_of(3)).slots, 1u);
  EXPECT_EQ(world.pools.stats(spec_of(1)).slots, 1u);
  EXPECT_EQ(world.pools.bytes(), 9 * kMiB);
  EXPECT_EQ(world.pools.stats().peak_bytes, 10 * kMiB);
  EXPECT_EQ(world.allocated(), 9 * kMiB);
}

TEST(PoolSet, OverBudgetWithEverythingInUseIsOneClearErrorAndNothingIsLost) {
  SetWorld world(10 * kMiB);
  PooledTensor six = world.pools.acquire(spec_of(6));
  const PooledTensor three = world.pools.acquire(spec_of(3));
  const std::string text = out_of_memory([&] { world.pools.acquire(spec_of(2)); });
  EXPECT_CONTAINS(text, "hold 9.00 MiB of their budget of 10.00 MiB");
  EXPECT_CONTAINS(text, "no room for 2.00 MiB more");
  EXPECT_THROW(world.pools.try_acquire(spec_of(11)), OutOfMemory);
  six.release();
  EXPECT_TRUE(world.pools.acquire(spec_of(2)));
}

TEST(PoolSet, MemoryThatTheDeviceCanNeverHaveIsNotCounted) {
  World world(32 * kMiB);
  PoolSet pools(world.allocator, kGiB);
  EXPECT_THROW(pools.acquire(spec_of(64)), OutOfMemory);
  EXPECT_EQ(pools.bytes(), 0u);
  EXPECT_EQ(pools.validate(), "");
}

TEST(PoolSet, MemoryThatTheAllocatorDoesNotHaveNowIsNotCounted) {
  World world(32 * kMiB);
  PoolSet pools(world.allocator, 20 * kMiB);
  void* const other = world.allocate(20 * kMiB);
  for (int i = 0; i < 3; ++i) {
    EXPECT_THROW(pools.acquire(spec_of(16)), OutOfMemory);
    EXPECT_EQ(pools.bytes(), 0u);
    EXPECT_EQ(pools.validate(), "");
  }
  world.allocator.deallocate(other);
  EXPECT_TRUE(pools.acquire(spec_of(16)));  // within the budget, as before the attempts
  EXPECT_EQ(pools.bytes(), 16 * kMiB);
}

// Makes pools trim each other, the allocator free segments, and memory serve several streams.
void use_some_specs(SetWorld& world) {
  const Stream a = world.device->new_stream();
  const Stream b = world.device->new_stream();
  PooledTensor first = world.pools.acquire(spec_of(16), a);
  first.record_stream(b);
  PooledTensor second = world.pools.acquire(spec_of(12), b);
  first.release();
  world.pools.acquire(spec_of(16), b).release();
  world.pools.acquire(spec_of(24), a).release();  // the pool of 16 makes room
  second.release();
  world.pools.acquire(spec_of(20), b).release();
  world.pools.trim();
}

// Every device call of the program fails in its turn: alone, and together with all calls of its kind that follow.
TEST(PoolSet, AfterAnyFailingCallTheBudgetCountsWhatThePoolsHold) {
  for (const Fault& kind :
       {Fault{.out_of_memory = false, .code = 999}, Fault{.call = DeviceCall::malloc, .repeat = true},
        Fault{.call = DeviceCall::free, .out_of_memory = false, .code = 999, .repeat = true}}) {
    std::uint64_t nth = 0;
    std::uint64_t struck = 1;
    while (struck > 0) {
      SetWorld world(40 * kMiB, {}, 48 * kMiB);
      Fault fault = kind;
      fault.nth = ++nth;
      world.device->set_faults({fault});
      try {
        use_some_specs(world);
      } catch (const OutOfMemory&) {
      } catch (const CudaError& error) {
        EXPECT_EQ(error.code(), 999);
      }
      struck = world.device->faults_injected();
      EXPECT_EQ(world.pools.validate(), "") << "call " << nth;
      EXPECT_EQ(world.pools.stats().live, 0u) << "call " << nth;
      EXPECT_EQ(world.pools.bytes(), world.pools.stats().bytes) << "call " << nth;
      EXPECT_EQ(world.pools.bytes(), world.allocated()) << "call " << nth;
      world.device->set_faults({});
      use_some_specs(world);
      EXPECT_EQ(world.pools.bytes(), 0u) << "call " << nth;
      EXPECT_EQ(world.allocated(), 0u) << "call " << nth;
    }
    EXPECT_GT(nth, 1u);
  }
}

TEST(PoolSet, BadInputIsRefused) {
  World world;
  EXPECT_CONTAINS(refusal([&] { const PoolSet pools(world.allocator, 0); }), "byte_budget is 0");
  EXPECT_CONTAINS(refusal([&] { const PoolSet pools(world.allocator, kGiB, {.initial_slots = 1}); }),
                  "initial_slots is 1");
  EXPECT_CONTAINS(refusal([&] { const PoolSet pools(world.allocator, kGiB, {.alignment = 3}); }), "alignment is 3");
  EXPECT_CONTAINS(refusal([&] { const PoolSet pools(nullptr, kGiB); }), "the allocator of a pool is null");
  PoolSet pools(world.allocator, kGiB);
  EXPECT_CONTAINS(refusal([&] { pools.acquire({{-1}}); }), "an extent of -1");
}

TEST(PoolSet, TensorsMayOutliveIt) {
  World world;
  auto pools = std::make_unique<PoolSet>(world.allocator, kGiB);
  PooledTensor tensor = pools->acquire(spec_of(2));
  pools->acquire(spec_of(3));
  pools.reset();
  EXPECT_EQ(world.allocated(), 2 * kMiB);
  tensor.release();
  EXPECT_EQ(world.allocated(), 0u);
}

TEST(PoolSet, TrimGivesBackAllThatIsFree) {
  SetWorld world(kGiB);
  const PooledTensor held = world.pools.acquire(spec_of(1));
  for (const std::int64_t mib : {2, 3, 4}) world.pools.acquire(spec_of(mib));
  EXPECT_EQ(world.pools.trim(), 9 * kMiB);
  EXPECT_EQ(world.pools.bytes(), kMiB);
}

TEST(PoolSet, TheBudgetHoldsWhileThreadsCompeteForIt) {
  SetWorld world(24 * kMiB);
  std::vector<std::thread> threads;
  for (int thread = 0; thread < 4; ++thread) {
    threads.emplace_back([&world, thread] {
      for (int i = 0; i < 300; ++i) {
        const PooledTensor tensor = world.pools.acquire(spec_of(1 + (i * 7 + thread) % 5));  // four of 5 MiB fit
        EXPECT_LE(world.pools.bytes(), world.pools.byte_budget());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(world.pools.stats().live, 0u);
  EXPECT_EQ(world.pools.bytes(), world.pools.stats().bytes);
}

}  // namespace
}  // namespace cachalot
