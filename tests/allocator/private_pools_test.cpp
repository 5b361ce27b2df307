// Private pools: redirection of threads and captures, users, special pools, segment providers, checkpoints.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tests/allocator/testing.h"

namespace cachalot {
namespace {

constexpr PoolId kPool{0, 1};
constexpr PoolId kOther{0, 2};
constexpr PoolId kGraph{1, 0};

bool any_stream(Stream) { return true; }

PoolId pool_of(CachingAllocator& allocator, void* ptr) {
  for (const SegmentSnapshot& segment : allocator.snapshot({}, false).segments) {
    if (segment.address <= address(ptr) && address(ptr) < segment.address + segment.total_size)
      return segment.segment_pool_id;
  }
  ADD_FAILURE() << "in no segment";
  return {};
}

// ---- Redirection

TEST(APrivatePool, HasSegmentsOfItsOwn) {
  World world;
  world.allocator.deallocate(world.allocate(1000));
  void* ptr = nullptr;
  {
    const InPool in_pool(world.allocator, kPool);
    ptr = world.allocate(1000);
    EXPECT_EQ(world.segments(), 2);
    EXPECT_EQ(pool_of(world.allocator, ptr), kPool);
  }
  void* outside = world.allocate(1000);
  EXPECT_EQ(pool_of(world.allocator, outside), PoolId{});
  EXPECT_EQ(world.segments(), 2);
}

TEST(AFreedBlock, GoesBackToItsPool) {
  World world;
  world.allocator.create_or_retain_pool(0, kPool);
  void* ptr = nullptr;
  {
    const InPool in_pool(world.allocator, kPool);
    ptr = world.allocate(4096);
  }
  world.allocator.deallocate(ptr);
  EXPECT_NE(world.allocate(4096), ptr);
  const InPool in_pool(world.allocator, kPool);
  EXPECT_EQ(world.allocate(4096), ptr);
}

TEST(Redirection, OfAThreadLeavesOtherThreadsAlone) {
  World world;
  const InPool in_pool(world.allocator, kPool);
  void* other = nullptr;
  on_another_thread([&] { other = world.allocate(1000); });
  EXPECT_EQ(pool_of(world.allocator, other), PoolId{});
  EXPECT_EQ(pool_of(world.allocator, world.allocate(1000)), kPool);
}

TEST(Redirection, OfAStreamsCaptureLeavesOtherStreamsAlone) {
  World world;
  const Stream captured = world.device->new_stream();
  const Capture capture(world, captured, kGraph);
  EXPECT_EQ(pool_of(world.allocator, world.allocate(1000, captured)), kGraph);
  EXPECT_EQ(pool_of(world.allocator, world.allocate(1000)), PoolId{});
}

TEST(Redirection, BegunLastIsAskedFirst) {
  World world;
  const InPool outer(world.allocator, kPool);
  {
    const InPool inner(world.allocator, kOther);
    EXPECT_EQ(pool_of(world.allocator, world.allocate(1000)), kOther);
  }
  EXPECT_EQ(pool_of(world.allocator, world.allocate(1000)), kPool);
}

TEST(Redirection, FallsThroughAFilterThatSaysNo) {
  World world;
  const Stream stream = world.device->new_stream();
  world.allocator.begin_allocate_to_pool(0, kPool, any_stream, RedirectFor::thread);
  world.allocator.begin_allocate_to_pool(
      0, kOther, [&](Stream asked) { return asked == stream; }, RedirectFor::thread);
  EXPECT_EQ(pool_of(world.allocator, world.allocate(1000, stream)), kOther);
  EXPECT_EQ(pool_of(world.allocator, world.allocate(1000)), kPool);
  world.allocator.end_allocate_to_pool(0, kPool);  // in another order than begun
  EXPECT_EQ(pool_of(world.allocator, world.allocate(1000)), PoolId{});
  EXPECT_EQ(pool_of(world.allocator, world.allocate(1000, stream)), kOther);
  world.allocator.end_allocate_to_pool(0, kOther);
}

TEST(Redirection, IsPerDevice) {
  TwoDevices two;
  const InPool in_pool(two.allocator, kPool, 1);
  EXPECT_EQ(pool_of(two.allocator, two.allocator.allocate(1000, 0)), PoolId{});
  EXPECT_EQ(pool_of(two.allocator, two.allocator.allocate(1000, 1)), kPool);
}

TEST(APrivatePools, BlocksCountInTheStatistics) {
  World world;
  const InPool in_pool(world.allocator, kPool);
  world.allocate(1000);
  world.allocate(5 * kMiB);
  const DeviceStats stats = world.allocator.memory_stats();
  EXPECT_EQ(stats.allocated_bytes.small_pool.current, 1024);
  EXPECT_EQ(stats.allocated_bytes.large_pool.current, static_cast<std::int64_t>(5 * kMiB));
  EXPECT_EQ(stats.segment.all.current, 2);
  EXPECT_EQ(stats.reserved_bytes.all.current, static_cast<std::int64_t>(22 * kMiB));
}

// ---- Users

TEST(APoolsUsers, AreCounted) {
  World world;
  EXPECT_EQ(world.allocator.pool_use_count(0, kPool), 0);
  world.allocator.create_or_retain_pool(0, kPool);
  EXPECT_EQ(world.allocator.pool_use_count(0, kPool), 1);
  {
    const InPool in_pool(world.allocator, kPool);
    EXPECT_EQ(world.allocator.pool_use_count(0, kPool), 2);
  }
  EXPECT_EQ(world.allocator.pool_use_count(0, kPool), 1);
  world.allocator.create_or_retain_pool(0, kPool);
  EXPECT_EQ(world.allocator.pool_use_count(0, kPool), 2);
  world.allocator.release_pool(0, kPool);
  EXPECT_EQ(world.allocator.pool_use_count(0, kPool), 1);
}

TEST(EndingARedirection, LeavesTheUser) {
  World world;
  world.allocator.begin_allocate_to_pool(0, kPool, any_stream, RedirectFor::thread);
  world.allocator.end_allocate_to_pool(0, kPool);
  EXPECT_EQ(world.allocator.pool_use_count(0, kPool), 1);
}

TEST(EmptyCache, KeepsTheMemoryOfAPoolWithUsers) {
  World world;
  world.allocator.create_or_retain_pool(0, kPool);
  {
    const InPool in_pool(world.allocator, kPool);
    world.allocator.deallocate(world.allocate(5 * kMiB));
  }
  world.allocator.empty_cache();
  world.allocator.empty_cache(0, kPool);
  EXPECT_EQ(world.reserved(), 20 * kMiB);
  world.allocator.release_pool(0, kPool);
  EXPECT_EQ(world.reserved(), 20 * kMiB);  // only empty_cache gives back
  world.allocator.empty_cache(0, kPool);
  EXPECT_EQ(world.reserved(), 0u);
}

TEST(EmptyCache, OfEverythingIncludesPoolsWithoutUsers) {
  World world;
  {
    const InPool in_pool(world.allocator, kPool);
    world.allocator.deallocate(world.allocate(5 * kMiB));
    world.allocator.deallocate(world.allocate(500));
  }
  world.allocator.empty_cache();
  EXPECT_EQ(world.reserved(), 0u);
}

TEST(EmptyCache, OfOnePoolLeavesTheRest) {
  World world;
  world.allocator.deallocate(world.allocate(5 * kMiB));
  for (const PoolId pool : {kPool, kOther}) {
    const InPool in_pool(world.allocator, pool);
    world.allocator.deallocate(world.allocate(5 * kMiB));
  }
  world.allocator.empty_cache(0, kPool);
  EXPECT_EQ(world.reserved(), 40 * kMiB);
  EXPECT_EQ(picture(world.allocator, kOther), "free 20971520\n");
  EXPECT_EQ(picture(world.allocator, kPool), "");
}

TEST(AReleasedPool, KeepsSegmentsWithALiveBlock) {
  World world;
  void* ptr = nullptr;
  {
    const InPool in_pool(world.allocator, kPool);
    ptr = world.allocate(5 * kMiB);
  }
  world.allocator.empty_cache(0, kPool);
  EXPECT_EQ(world.reserved(), 20 * kMiB);
  world.allocator.deallocate(ptr);
  EXPECT_EQ(world.reserved(), 20 * kMiB);
  world.allocator.empty_cache();
  EXPECT_EQ(world.reserved(), 0u);
}

// Its only user goes before the redirection ends.
TEST(EmptyCache, KeepsAPoolThatRequestsAreStillRedirectedInto) {
  World world;
  world.allocator.begin_allocate_to_pool(0, kPool, any_stream, RedirectFor::thread);
  world.allocator.release_pool(0, kPool);
  world.allocator.empty_cache();
  void* ptr = world.allocate(1000);
  EXPECT_EQ(pool_of(world.allocator, ptr), kPool);
  EXPECT_TRUE(world.allocator.pool_has_exactly(0, kPool, {ptr}));
  world.allocator.empty_cache(0, kPool);
  EXPECT_TRUE(world.allocator.pool_has_exactly(0, kPool, {ptr}));
  world.allocator.deallocate(ptr);
  world.allocator.end_allocate_to_pool(0, kPool);
  world.allocator.empty_cache();
  EXPECT_EQ(world.reserved(), 0u);
  EXPECT_CONTAINS(refusal([&] { world.allocator.pool_has_exactly(0, kPool, {}); }), "Could not find pool of id");
}

TEST(EmptyCache, OfAReleasedPoolWaitsForItsPendingFreesAlone) {
  World world;
  const Stream other = world.device->new_stream();
  const Stream slow = world.device->new_stream();
  void* elsewhere = world.allocate(1000);
  world.allocator.record_stream(elsewhere, slow);
  world.launch(slow, 1'000'000);
  world.allocator.deallocate(elsewhere);
  {
    const InPool in_pool(world.allocator, kPool);
    void* ptr = world.allocate(5 * kMiB);
    world.allocator.record_stream(ptr, other);
    world.launch(other, 100);
    world.allocator.deallocate(ptr);
  }
  world.allocator.empty_cache(0, kPool);
  EXPECT_EQ(world.reserved(), 2 * kMiB);
  EXPECT_EQ(world.allocator.memory_stats().active.all.current, 1);  // the other pool's free still waits
}

// The steps are those of PyTorch's test_graph_memory_stats_and_use_result_after_destroy_graph, with its five sizes and
// its figures: up to three tensors of a size are live at once, the last one outlives the graph.
TEST(AGraphsPool, HoldsItsSegmentsUntilTheGraphAndItsResultsAreGone) {
  struct Case {
    std::size_t size;
    std::int64_t segments;
    std::size_t reserved, kept;
  };
  for (const Case& each :
       {Case{512, 1, 2 * kMiB, 2 * kMiB}, Case{kMiB, 2, 4 * kMiB, 2 * kMiB}, Case{kMiB + 512, 1, 20 * kMiB, 20 * kMiB},
        Case{10 * kMiB - 512, 2, 40 * kMiB, 20 * kMiB}, Case{10 * kMiB + 512, 3, 36 * kMiB, 12 * kMiB}}) {
    World world;
    const Stream captured = world.device->new_stream();
    void* result = nullptr;
    {
      const Capture capture(world, captured, kGraph);
      result = world.allocate(each.size, captured);
      for (int i = 0; i < 5; ++i) {
        void* copy = world.allocate(each.size, captured);
        void* sum = world.allocate(each.size, captured);
        world.allocator.deallocate(copy);
        world.allocator.deallocate(result);
        result = sum;
      }
    }
    EXPECT_EQ(world.segments(), each.segments);
    EXPECT_EQ(world.reserved(), each.reserved);
    EXPECT_EQ(world.active(), each.size);
    world.allocator.empty_cache();
    EXPECT_EQ(world.reserved(), each.reserved);  // the graph lives
    world.allocator.release_pool(0, kGraph);
    world.allocator.empty_cache();
    EXPECT_EQ(world.segments(), 1);
    EXPECT_EQ(world.reserved(), each.kept);
    EXPECT_EQ(world.active(), each.size);
    world.allocator.deallocate(result);
    world.allocator.empty_cache();
    EXPECT_EQ(world.reserved(), 0u);
  }
}

TEST(TwoCaptures, MayShareAPool) {
  // The steps are those of PyTorch's test_graph_two_successive: the second graph reuses what the first has freed.
  World world;
  const Stream captured = world.device->new_stream();
  {
    const Capture capture(world, captured, kGraph);
    world.allocator.deallocate(world.allocate(4096, captured));
  }
  {
    const Capture capture(world, captured, kGraph);
    world.allocate(4096, captured);
  }
  EXPECT_EQ(world.reserved(), 2 * kMiB);
  EXPECT_EQ(world.allocator.pool_use_count(0, kGraph), 2);
}

// ---- no_split and use_on_oom

TEST(ANoSplitPool, HandsOutWholeSegments) {
  World world;
  world.allocator.create_or_retain_pool(0, kPool);
  world.allocator.set_no_split(0, kPool);
  const InPool in_pool(world.allocator, kPool);
  world.allocate(1000);
  void* large = world.allocate(3 * kMiB);
  EXPECT_EQ(picture(world.allocator), "live 2097152\nlive 20971520\n");
  EXPECT_EQ(world.allocator.requested_size(large), 3 * kMiB);
  world.allocator.deallocate(large);
  EXPECT_EQ(world.allocate(7 * kMiB), large);
}

TEST(AUseOnOomPool, ServesOthersAsALastResort) {
  World world(40 * kMiB);
  world.allocator.create_or_retain_pool(0, kPool);
  world.allocator.set_use_on_oom(0, kPool, true);
  void* ptr = nullptr;
  {
    const InPool in_pool(world.allocator, kPool);
    ptr = world.allocate(30 * kMiB);
  }
  world.allocator.deallocate(ptr);
  void* first = world.allocate(10 * kMiB);  // the device still has that
  EXPECT_NE(first, ptr);
  void* second = world.allocate(10 * kMiB);
  EXPECT_EQ(second, ptr);
  EXPECT_EQ(pool_of(world.allocator, second), kPool);
  EXPECT_EQ(world.allocator.memory_stats().num_alloc_retries, 0);
  world.allocator.deallocate(second);
  const InPool in_pool(world.allocator, kPool);
  EXPECT_EQ(world.allocate(30 * kMiB), ptr);
}

TEST(AUseOnOomPool, GivesOnlyFreeBlocksOfTheRequestsStream) {
  World world(40 * kMiB);
  world.allocator.create_or_retain_pool(0, kPool);
  world.allocator.set_use_on_oom(0, kPool, true);
  {
    const InPool in_pool(world.allocator, kPool);
    world.allocator.deallocate(world.allocate(30 * kMiB));
  }
  EXPECT_THROW(world.allocate(20 * kMiB, world.device->new_stream()), OutOfMemory);
  EXPECT_THROW(world.allocate(32 * kMiB), OutOfMemory);
  world.allocate(20 * kMiB);
}

TEST(AUseOnOomPool, ServesNobodyOnceThatIsTakenBack) {
  World world(40 * kMiB);
  world.allocator.create_or_retain_pool(0, kPool);
  world.allocator.set_use_on_oom(0, kPool, true);
  {
    const InPool in_pool(world.allocator, kPool);
    world.allocator.deallocate(world.allocate(30 * kMiB));
  }
  world.allocator.set_use_on_oom(0, kPool, false);
  EXPECT_THROW(world.allocate(20 * kMiB), OutOfMemory);
}

TEST(AUseOnOomPool, DoesNotServeOtherPrivatePools) {
  World world(40 * kMiB);
  world.allocator.create_or_retain_pool(0, kPool);
  world.allocator.set_use_on_oom(0, kPool, true);
  {
    const InPool in_pool(world.allocator, kPool);
    world.allocator.deallocate(world.allocate(30 * kMiB));
  }
  const InPool in_pool(world.allocator, kOther);
  EXPECT_THROW(world.allocate(20 * kMiB), OutOfMemory);
}

TEST(APoolWithoutUsers, IsEmptiedOnOutOfMemory) {
  World world(40 * kMiB);
  {
    const InPool in_pool(world.allocator, kPool);
    world.allocator.deallocate(world.allocate(30 * kMiB));
  }
  world.allocate(40 * kMiB);
  EXPECT_EQ(world.segments(), 1);
}

// ---- Segment providers

class Provider : public SegmentProvider {
 public:
  std::optional<Address> allocate_segment(std::size_t bytes, int device, Stream stream) override {
    EXPECT_EQ(device, 0);
    if (refuses) return std::nullopt;
    taken.push_back(bytes);
    streams.push_back(stream);
    next_ += Address{1} << 32;
    return next_ + offset;
  }
  void free_segment(Address address, std::size_t bytes, int device, Stream stream) override {
    EXPECT_EQ(device, 0);
    EXPECT_EQ(address, next_ + offset);
    EXPECT_EQ(stream, streams.back());
    freed.push_back(bytes);
  }

  bool refuses = false;
  Address offset = 0;
  std::vector<std::size_t> taken, freed;
  std::vector<Stream> streams;

 private:
  Address next_ = Address{1} << 45;
};

TEST(APoolWithAProvider, TakesItsSegmentsFromIt) {
  World world;
  const auto provider = std::make_shared<Provider>();
  world.allocator.create_or_retain_pool(0, kPool, provider);
  const Stream stream = world.device->new_stream();
  void* ptr = nullptr;
  {
    const InPool in_pool(world.allocator, kPool);
    ptr = world.allocate(3 * kMiB, stream);
    world.allocate(4 * kMiB, stream);
  }
  EXPECT_EQ(provider->taken, std::vector<std::size_t>{20 * kMiB});
  EXPECT_EQ(provider->streams, std::vector<Stream>{stream});
  EXPECT_EQ(world.count(DeviceCall::malloc), 0u);
  EXPECT_EQ(world.reserved(), 20 * kMiB);
  EXPECT_EQ(world.allocator.memory_stats().num_device_alloc, 1);
  world.allocator.deallocate(ptr);
}

TEST(APoolWithAProvider, GivesItsSegmentsBackToItWithoutUsersAndLiveBlocks) {
  World world;
  const auto provider = std::make_shared<Provider>();
  world.allocator.create_or_retain_pool(0, kPool, provider);
  void* ptr = nullptr;
  {
    const InPool in_pool(world.allocator, kPool);
    ptr = world.allocate(3 * kMiB);
  }
  world.allocator.release_pool(0, kPool);
  world.allocator.empty_cache(0, kPool);
  EXPECT_TRUE(provider->freed.empty());
  world.allocator.deallocate(ptr);
  EXPECT_TRUE(provider->freed.empty());
  world.allocator.empty_cache(0, kPool);
  EXPECT_EQ(provider->freed, std::vector<std::size_t>{20 * kMiB});
  EXPECT_EQ(world.count(DeviceCall::free), 0u);
}

TEST(APoolWithAProvider, RefusesSegmentsThatAreNotAligned) {
  World world;
  const auto provider = std::make_shared<Provider>();
  world.allocator.create_or_retain_pool(0, kPool, provider);
  const InPool in_pool(world.allocator, kPool);
  provider->offset = 256;
  EXPECT_CONTAINS(refusal([&] { world.allocate(1000); }), "both must be multiples of 512");
  EXPECT_EQ(provider->freed, std::vector<std::size_t>{2 * kMiB});
  EXPECT_EQ(world.reserved(), 0u);
  provider->offset = 512;
  EXPECT_NE(world.allocate(1000), nullptr);
}

// The pool loses its users as another thread may do it while the first waits for the device.
TEST(APoolThatIsAskedForMemory, LivesOnWithoutUsersAndSegments) {
  World world;
  auto redirection = std::make_unique<InPool>(world.allocator, kPool);
  world.allocator.add_free_memory_callback([&] {
    redirection.reset();
    world.allocator.empty_cache(0, kPool);
    return true;
  });
  void* ptr = world.allocate(1000);
  EXPECT_TRUE(world.allocator.pool_has_exactly(0, kPool, {ptr}));
  world.allocator.deallocate(ptr);
  world.allocator.empty_cache(0, kPool);
  EXPECT_EQ(world.reserved(), 0u);
}

TEST(AProvidersRefusal, IsOutOfMemory) {
  World world;
  const auto provider = std::make_shared<Provider>();
  provider->refuses = true;
  world.allocator.create_or_retain_pool(0, kPool, provider);
  {
    const InPool in_pool(world.allocator, kPool);
    EXPECT_THROW(world.allocate(1000), OutOfMemory);
  }
  world.allocate(1000);
  provider->refuses = false;
  const InPool in_pool(world.allocator, kPool);
  world.allocate(1000);
}

TEST(APoolWithAProvider, MayOutliveItsMakersReference) {
  World world;
  std::weak_ptr<Provider> watched;
  {
    const auto provider = std::make_shared<Provider>();
    watched = provider;
    world.allocator.create_or_retain_pool(0, kPool, provider);
  }
  EXPECT_FALSE(watched.expired());
  void* ptr = nullptr;
  {
    const InPool in_pool(world.allocator, kPool);
    ptr = world.allocate(1000);
  }
  world.allocator.release_pool(0, kPool);
  world.allocator.deallocate(ptr);
  world.allocator.empty_cache();
  EXPECT_TRUE(watched.expired());
}

// ---- Live allocations

TEST(PoolHasExactly, ComparesAllLiveAllocations) {
  World world;
  world.allocator.create_or_retain_pool(0, kPool);
  void* outside = world.allocate(1000);
  std::vector<void*> live;
  {
    const InPool in_pool(world.allocator, kPool);
    live = {world.allocate(1000), world.allocate(3 * kMiB)};
  }
  EXPECT_TRUE(world.allocator.pool_has_exactly(0, kPool, live));
  EXPECT_TRUE(world.allocator.pool_has_exactly(0, kPool, {live[1], live[0]}));
  EXPECT_FALSE(world.allocator.pool_has_exactly(0, kPool, {live[0]}));
  EXPECT_FALSE(world.allocator.pool_has_exactly(0, kPool, {live[0], live[1], outside}));
  EXPECT_FALSE(world.allocator.pool_has_exactly(0, kPool, {live[0], outside}));
  world.allocator.deallocate(live[1]);
  EXPECT_TRUE(world.allocator.pool_has_exactly(0, kPool, {live[0]}));
}

// ---- Mistakes, in PyTorch's words

TEST(PoolMistakes, AreNamed) {
  World world;
  CachingAllocator& allocator = world.allocator;
  EXPECT_CONTAINS(refusal([&] { allocator.end_allocate_to_pool(0, kPool); }), "not currently recording to mempool_id");
  EXPECT_CONTAINS(refusal([&] { allocator.pool_has_exactly(0, kPool, {}); }), "Could not find pool of id");
  EXPECT_CONTAINS(refusal([&] { allocator.checkpoint_pool(0, kPool); }), "Could not find pool of id");
  EXPECT_CONTAINS(refusal([&] {
                    allocator.restore_pool(0, PoolCheckpoint{kPool, {}});
                  }),
                  "Could not find private pool id");
  EXPECT_NE(refusal([&] { allocator.release_pool(0, kPool); }), "");
  {
    const InPool in_pool(allocator, kPool);
    EXPECT_CONTAINS(refusal([&] { allocator.begin_allocate_to_pool(0, kPool, any_stream, RedirectFor::thread); }),
                    "already recording to mempool_id");
    EXPECT_EQ(allocator.pool_use_count(0, kPool), 1);
  }
  EXPECT_NE(refusal([&] { allocator.release_pool(0, kPool); }), "");  // InPool has released its use
  EXPECT_NE(refusal([&] { allocator.create_or_retain_pool(0, {}); }), "");
  EXPECT_NE(refusal([&] { allocator.create_or_retain_pool(1, kPool); }), "");
}

// ---- Checkpoints (PyTorch's TestBlockStateAbsorption)

class Checkpoints : public testing::Test {
 protected:
  Checkpoints() { world.allocator.create_or_retain_pool(0, kGraph); }

  std::vector<void*> in_pool(const std::vector<std::size_t>& sizes) {
    const InPool redirected(world.allocator, kGraph);
    std::vector<void*> result;
    for (const std::size_t size : sizes) result.push_back(world.allocate(size));
    return result;
  }
  std::string pool_picture() { return picture(world.allocator, kGraph); }

  // Takes the checkpoint, changes the pool, goes back, and finds the same blocks.
  void expect_round_trip(const std::vector<void*>& live, const std::function<void()>& change) {
    const std::string before = pool_picture();
    const DeviceStats stats = world.allocator.memory_stats();
    const PoolCheckpoint checkpoint = world.allocator.checkpoint_pool(0, kGraph);
    EXPECT_EQ(checkpoint.pool, kGraph);
    change();
    std::vector<void*> live_before;
    for (const SegmentSnapshot& segment : world.allocator.snapshot(kGraph, false).segments) {
      for (const BlockSnapshot& block : segment.blocks) {
        if (block.state == BlockSnapshot::State::active_allocated)
          live_before.push_back(reinterpret_cast<void*>(block.address));
      }
    }
    RestoreResult result = world.allocator.restore_pool(0, checkpoint);
    EXPECT_EQ(world.allocator.validate(), "");
    EXPECT_EQ(sorted(result.freed), sorted(live_before));
    EXPECT_EQ(sorted(result.created), sorted(live));
    EXPECT_TRUE(world.allocator.pool_has_exactly(0, kGraph, result.created));
    EXPECT_EQ(pool_picture().substr(0, before.size()), before);  // segments made since stay, free
    EXPECT_EQ(world.allocator.memory_stats().allocated_bytes.all.current, stats.allocated_bytes.all.current);
    EXPECT_EQ(world.allocator.memory_stats().allocation.all.current, stats.allocation.all.current);
    for (void* ptr : result.created) world.allocator.deallocate(ptr);
    EXPECT_TRUE(world.allocator.pool_has_exactly(0, kGraph, {}));
    EXPECT_EQ(world.active(), 0u);
  }

  static std::vector<void*> sorted(std::vector<void*> pointers) {
    std::sort(pointers.begin(), pointers.end());
    return pointers;
  }

  World world;
};

TEST_F(Checkpoints, OfAnEmptyPoolFreeEverything) {
  expect_round_trip({}, [&] { in_pool({1000, 3 * kMiB}); });
}

TEST_F(Checkpoints, BringBackOneBlock) {
  const auto live = in_pool({512});
  expect_round_trip(live, [&] { world.allocator.deallocate(live[0]); });
}

TEST_F(Checkpoints, KeepABlockThatStillLives) {
  const auto live = in_pool({512, 3 * kMiB});
  expect_round_trip(live, [] {});
}

TEST_F(Checkpoints, BringBackABlockInTheMiddleOfASegment) {
  auto blocks = in_pool(std::vector<std::size_t>(11, 512));
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    if (i != 5) world.allocator.deallocate(blocks[i]);
  }
  expect_round_trip({blocks[5]}, [&] { world.allocator.deallocate(blocks[5]); });
}

TEST_F(Checkpoints, BringBackTwoSeparateBlocksInTheMiddle) {
  auto blocks = in_pool(std::vector<std::size_t>(11, 512));
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    if (i != 5 && i != 8) world.allocator.deallocate(blocks[i]);
  }
  expect_round_trip({blocks[5], blocks[8]}, [&] {
    world.allocator.deallocate(blocks[8]);
    world.allocator.deallocate(blocks[5]);
  });
}

TEST_F(Checkpoints, BringBackTwoNeighboursInTheMiddle) {
  auto blocks = in_pool(std::vector<std::size_t>(11, 512));
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    if (i != 5 && i != 6) world.allocator.deallocate(blocks[i]);
  }
  expect_round_trip({blocks[5], blocks[6]}, [&] {
    world.allocator.deallocate(blocks[5]);
    in_pool({512 * 7, 512, 512, 1024});
    world.allocator.deallocate(blocks[6]);
  });
}

TEST_F(Checkpoints, ReachSmallAndLargeSegmentsOfSeveralStreams) {
  const Stream other = world.device->new_stream();
  std::vector<void*> live = in_pool({kMiB, kMiB, 3 * kMiB, 12 * kMiB});
  {
    const InPool redirected(world.allocator, kGraph);
    live.push_back(world.allocate(1000, other));
    live.push_back(world.allocate(5 * kMiB, other));
  }
  world.allocator.deallocate(live[0]);
  live.erase(live.begin());
  expect_round_trip(live, [&] {
    for (std::size_t i = 0; i < live.size(); i += 2) world.allocator.deallocate(live[i]);
    in_pool({100, 200, 4 * kMiB});
  });
}

TEST_F(Checkpoints, LeaveSegmentsMadeSinceFree) {
  const auto live = in_pool({512});
  const PoolCheckpoint checkpoint = world.allocator.checkpoint_pool(0, kGraph);
  const auto later = in_pool({3 * kMiB});
  const RestoreResult result = world.allocator.restore_pool(0, checkpoint);
  EXPECT_EQ(sorted(result.freed), sorted({live[0], later[0]}));
  EXPECT_EQ(result.created, live);
  EXPECT_EQ(pool_picture(), "live 512 | free 2096640\nfree 20971520\n");
}

TEST_F(Checkpoints, KeepTheSlackOfABlockThatWasNotSplit) {
  const auto live = in_pool({19 * kMiB});  // 20 MiB, whole
  expect_round_trip(live, [&] {
    world.allocator.deallocate(live[0]);
    in_pool({5 * kMiB, 2 * kMiB});
  });
}

TEST_F(Checkpoints, MayBeReturnedToAgainAndAgain) {
  const auto live = in_pool({512, 1024, 2048});
  world.allocator.deallocate(live[1]);
  const PoolCheckpoint checkpoint = world.allocator.checkpoint_pool(0, kGraph);
  const std::string before = pool_picture();
  for (int i = 0; i < 3; ++i) {
    in_pool({700, 900});
    const RestoreResult result = world.allocator.restore_pool(0, checkpoint);
    EXPECT_EQ(sorted(result.created), sorted({live[0], live[2]}));
    EXPECT_EQ(pool_picture(), before);
  }
}

TEST_F(Checkpoints, AreRefusedWithASegmentListedTwice) {
  in_pool({512, 1024});
  PoolCheckpoint checkpoint = world.allocator.checkpoint_pool(0, kGraph);
  checkpoint.segments.push_back(checkpoint.segments.front());
  const std::string before = pool_picture();
  EXPECT_CONTAINS(refusal([&] { world.allocator.restore_pool(0, checkpoint); }), "listed twice");
  EXPECT_EQ(pool_picture(), before);
}

TEST_F(Checkpoints, AllowAFreeOfARestoredBlockOneByOne) {
  // The steps are those of PyTorch's test_tensor_dies_after_checkpoint: live 2 -> 1 -> 0.
  const auto live = in_pool({512, 512});
  const PoolCheckpoint checkpoint = world.allocator.checkpoint_pool(0, kGraph);
  for (void* ptr : live) world.allocator.deallocate(ptr);
  const RestoreResult result = world.allocator.restore_pool(0, checkpoint);
  EXPECT_TRUE(result.freed.empty());
  ASSERT_EQ(result.created.size(), 2u);
  world.allocator.deallocate(result.created[0]);
  EXPECT_TRUE(world.allocator.pool_has_exactly(0, kGraph, {result.created[1]}));
  world.allocator.deallocate(result.created[1]);
  EXPECT_TRUE(world.allocator.pool_has_exactly(0, kGraph, {}));
}

TEST_F(Checkpoints, LeaveOtherPoolsAlone) {
  void* outside = world.allocate(512);
  const auto live = in_pool({512});
  const PoolCheckpoint checkpoint = world.allocator.checkpoint_pool(0, kGraph);
  world.allocator.deallocate(live[0]);
  world.allocator.restore_pool(0, checkpoint);
  EXPECT_EQ(world.allocator.device_of(outside), 0);
  EXPECT_EQ(world.allocator.memory_stats().allocation.all.current, 2);
}

TEST_F(Checkpoints, AreNotReturnedToWhileABlockIsUsedOnAnotherStream) {
  const PoolCheckpoint empty = world.allocator.checkpoint_pool(0, kGraph);
  const auto live = in_pool({4096});
  const Stream other = world.device->new_stream();
  world.allocator.record_stream(live[0], other);
  world.launch(other);
  EXPECT_CONTAINS(refusal([&] { world.allocator.restore_pool(0, empty); }), "Events should have synchronized");
  EXPECT_TRUE(world.allocator.pool_has_exactly(0, kGraph, live));
  world.allocator.deallocate(live[0]);
  EXPECT_CONTAINS(refusal([&] { world.allocator.restore_pool(0, empty); }), "Events should have synchronized");
  world.pass(1000);
  world.allocate(512);
  EXPECT_TRUE(world.allocator.restore_pool(0, empty).freed.empty());
}

TEST_F(Checkpoints, AreNotTakenWhileAFreeIsPending) {
  const auto live = in_pool({512, 512});
  const Stream other = world.device->new_stream();
  world.allocator.record_stream(live[0], other);
  world.launch(other);
  world.allocator.deallocate(live[0]);
  EXPECT_CONTAINS(refusal([&] { world.allocator.checkpoint_pool(0, kGraph); }),
                  "Events should have synchronized when checkpointing block");
  EXPECT_EQ(pool_picture(), "waiting 512 | live 512 | free 2096128\n");
}

TEST_F(Checkpoints, AreRefusedWhenTheirSegmentIsGone) {
  world.allocator.deallocate(in_pool({512})[0]);
  const PoolCheckpoint checkpoint = world.allocator.checkpoint_pool(0, kGraph);
  world.allocator.release_pool(0, kGraph);
  world.allocator.empty_cache();
  ASSERT_EQ(world.reserved(), 0u);
  world.allocator.create_or_retain_pool(0, kGraph);
  const auto live = in_pool({1024});
  EXPECT_NE(refusal([&] { world.allocator.restore_pool(0, checkpoint); }), "");
  EXPECT_EQ(pool_picture(), "live 1024 | free 2096128\n");
  world.allocator.deallocate(live[0]);
}

}  // namespace
}  // namespace cachalot
