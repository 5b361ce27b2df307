// The guard among the allocator's other parts: streams, memory that is short, graphs, pools, sleep, sharing.
#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "tests/guard/testing.h"
#include "tests/scale.h"

namespace cachalot {
namespace {

using Kind = GuardReport::Kind;

// ---- Streams -------------------------------------------------------------------------------------------------------

TEST(GuardedStreams, AFreeWaitsForAllThatUseTheBlock) {
  GuardedWorld world;
  const Stream own = world.device->new_stream();
  const Stream other = world.device->new_stream();
  void* const block = world.allocate(1000, own);
  world.allocator.record_stream(block, other);
  const std::int64_t done = world.device->launch(other, 5'000'000);
  world.allocator.deallocate(block);
  EXPECT_GE(world.device->clock_ns(), done);
}

TEST(GuardedStreams, AFreeWaitsForTheDeviceWhereAStreamWasDestroyed) {
  for (const int code : {400, 709}) {
    SCOPED_TRACE(code);
    GuardedWorld world;
    const Stream busy = world.device->new_stream();
    void* const block = world.allocate(1000, world.device->new_stream());
    world.allocator.record_stream(block, world.device->new_stream());
    const std::int64_t done = world.device->launch(busy, 5'000'000);
    world.device->set_faults({{.call = DeviceCall::capture_status, .nth = 2, .out_of_memory = false, .code = code}});
    world.allocator.deallocate(block);
    EXPECT_EQ(world.device->faults_injected(), 1u);
    EXPECT_GE(world.device->clock_ns(), done);
    world.allocator.empty_cache();
    EXPECT_EQ(world.allocated(), 0u);
  }
}

TEST(GuardedStreams, AStreamMayGoOnceItsBlocksAreFreed) {
  GuardedWorld world;
  const Stream own = world.device->new_stream();
  const Stream other = world.device->new_stream();
  void* const block = world.allocate(1000, own);
  world.allocator.record_stream(block, other);
  world.allocator.deallocate(block);
  world.device->stream_destroy(own);
  world.device->stream_destroy(other);
  const std::uint64_t records = world.count(DeviceCall::event_record);
  world.allocator.empty_cache();
  EXPECT_LE(world.count(DeviceCall::event_record) - records, 2u);  // of the stream that looks, none of the others
  EXPECT_EQ(world.allocated(), 0u);
}

// ---- Memory that is short ------------------------------------------------------------------------------------------

class GuardedHeaps : public testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(Heaps, GuardedHeaps, testing::Values("heap:segments", "heap:pages"));

TEST_P(GuardedHeaps, TheQuarantineIsEmptiedBeforeMemoryRunsOut) {
  GuardedWorld world(GetParam(), 64 * kMiB);
  int observed = 0;
  world.allocator.add_out_of_memory_observer([&](const OutOfMemoryReport&) { ++observed; });
  void* const block = world.allocate(40 * kMiB);
  world.allocator.deallocate(block);
  EXPECT_GT(world.allocated(), 40 * kMiB);  // in quarantine it counts as allocated
  smash(world, block, 3);
  void* const next = world.allocate(50 * kMiB);
  EXPECT_EQ(world.take_one().kind, Kind::write_after_free);
  EXPECT_EQ(observed, 0);
  EXPECT_EQ(AllocatorGuard(world.allocator).quarantine_bytes(), 0u);
  EXPECT_THROW(world.allocate(50 * kMiB), OutOfMemory);
  EXPECT_EQ(observed, 1);
  world.allocator.deallocate(next);
}

TEST_P(GuardedHeaps, EmptyCacheEmptiesTheQuarantineFirst) {
  GuardedWorld world(GetParam());
  world.allocator.deallocate(world.allocate(kMiB));
  world.allocator.empty_cache();
  EXPECT_EQ(world.reserved(), 0u);
}

TEST(GuardedHeap, ABlockLargerThanTheQuarantineIsFreedAtOnce) {
  const SmallQuarantine small;
  GuardedWorld world;
  void* const block = world.allocate(2 * kMiB);
  smash(world, block, 2 * kMiB);
  world.allocator.deallocate(block);
  EXPECT_EQ(world.take_one().kind, Kind::back_canary);
  EXPECT_EQ(world.allocated(), 0u);
}

TEST(GuardedHeap, TheHeapShowsItsOwnBlocks) {
  GuardedWorld world;
  void* const block = world.allocate(1000);
  EXPECT_EQ(world.allocator.requested_size(block), 1000u);
  EXPECT_EQ(world.allocator.allocated_size(block), 2048u);  // 512 + 1000 + 256 and more
  EXPECT_EQ(offset_in_segment(world.allocator, block), 512u);
  EXPECT_EQ(world.allocator.device_of(block), 0);
  const SegmentSnapshot segment = world.allocator.snapshot().segments.at(0);
  EXPECT_EQ(segment.blocks.at(0).address, address(block) - 512);
  EXPECT_EQ(segment.blocks.at(0).requested_size, 1768u);
  world.allocator.deallocate(block);
  EXPECT_EQ(world.allocate(0), nullptr);
  EXPECT_THROW(world.allocate(kMaxRequestBytes), OutOfMemory);
}

TEST(GuardedHeap, CachingMayBeOff) {
  GuardedWorld world;
  void* const cached = world.allocate(1000);
  world.allocator.set_caching_enabled(false);
  void* const block = world.allocate(1000);
  smash(world, block, 1000);
  world.allocator.deallocate(block);
  world.allocator.deallocate(cached);
  EXPECT_EQ(world.take_one().address, address(block));
  world.allocator.empty_cache();
  world.allocator.set_caching_enabled(true);
  EXPECT_EQ(world.device->used_bytes(), 0u);
}

TEST(GuardedHeap, TheQuarantineIsEmptiedBeforeMemoryRunsOutWithCachingOff) {
  GuardedWorld world("heap:segments", 64 * kMiB);
  world.allocator.set_caching_enabled(false);
  world.allocator.deallocate(world.allocate(40 * kMiB));
  world.allocator.deallocate(world.allocate(50 * kMiB));
  EXPECT_THROW(world.allocate(70 * kMiB), OutOfMemory);
}

TEST(GuardedHeap, AnAllocationInOneHandleIsGuardedInIt) {
  GuardedWorld world("heap:pages,page_size_mb:2");
  const AllocateOptions contiguous{.contiguous = true};
  void* const block = world.allocator.allocate(7 * kMiB, 0, nullptr, contiguous);
  EXPECT_EQ(world.allocator.handle_count(block), 1u);
  smash(world, block, 7 * kMiB);
  world.allocator.deallocate(block);
  EXPECT_EQ(world.take_one().kind, Kind::back_canary);
}

TEST(GuardedHeap, EachDeviceHasItsOwn) {
  TwoDevices world(kGiB, "guard:True");
  std::vector<GuardReport> heard;
  AllocatorGuard(world.allocator).set_handler([&](const GuardReport& report) { heard.push_back(report); });
  void* const first = world.allocator.allocate(1000, 0);
  void* const second = world.allocator.allocate(1000, 1);
  EXPECT_EQ(world.allocator.device_of(second), 1);
  EXPECT_THROW(world.allocator.allocate(1000, 2), InvalidArgument);
  EXPECT_CONTAINS(refusal([&] { world.allocator.deallocate(second, 1000, 0, nullptr); }),
                  "is an allocation of device 1, not of device 0");
  const unsigned char byte = 1;
  world.device[1]->copy_from_host(address(second) + 1000, &byte, 1);
  world.device[1]->copy_from_host(address(second) + 1001, &byte, 1);  // one of the two differs, all but surely
  world.allocator.deallocate(first);
  world.allocator.deallocate(second);
  ASSERT_EQ(heard.size(), 1u);
  EXPECT_EQ(heard[0].device, 1);
}

// ---- Graphs and pools ----------------------------------------------------------------------------------------------

TEST_P(GuardedHeaps, ACaptureIsNotSpoiltAndItsMemoryIsNotLookedAt) {
  GuardedWorld world(GetParam());
  const Stream stream = world.device->new_stream();
  void* const before = world.allocate(1000, stream);
  void* const unrelated = world.allocate(1000);
  void* in_graph = nullptr;
  {
    const Capture capture(world, stream, kPool);
    world.allocator.deallocate(world.allocate(1000, stream));
    in_graph = world.allocate(2000, stream);
    world.allocator.deallocate(before);
    world.allocator.record_stream(unrelated, stream);
    world.allocator.deallocate(unrelated);
    world.allocator.empty_cache();
    EXPECT_THROW(AllocatorGuard(world.allocator).check(), InvalidArgument);
  }
  smash(world, in_graph, 2000);  // a replay may
  EXPECT_TRUE(AllocatorGuard(world.allocator).check().empty());
  world.allocator.deallocate(in_graph);
  smash(world, in_graph, 0);
  EXPECT_TRUE(AllocatorGuard(world.allocator).check().empty());
  EXPECT_EQ(AllocatorGuard(world.allocator).quarantine_bytes(), 0u);
}

TEST_P(GuardedHeaps, PoolsAreAsTheUserKnowsThem) {
  GuardedWorld world(GetParam());
  CachingAllocator& allocator = world.allocator;
  allocator.create_or_retain_pool(0, kPool);
  void* kept = nullptr;
  void* freed = nullptr;
  {
    const InPool in_pool(allocator, kPool);
    kept = world.allocate(1000);
    freed = world.allocate(5000);
  }
  EXPECT_TRUE(allocator.pool_has_exactly(0, kPool, {kept, freed}));
  allocator.deallocate(freed);
  EXPECT_TRUE(allocator.pool_has_exactly(0, kPool, {kept}));
  const PoolCheckpoint checkpoint = allocator.checkpoint_pool(0, kPool);
  allocator.deallocate(kept);
  void* other = nullptr;
  {
    const InPool in_pool(allocator, kPool);
    other = world.allocate(300);
  }
  const RestoreResult result = allocator.restore_pool(0, checkpoint);
  EXPECT_EQ(result.freed, std::vector<void*>{other});
  EXPECT_EQ(result.created, std::vector<void*>{kept});
  smash(world, kept, 1100);  // its owner is no longer known
  EXPECT_TRUE(AllocatorGuard(allocator).check().empty());
  EXPECT_EQ(allocator.validate(), "");
  allocator.deallocate(kept);
  allocator.release_pool(0, kPool);
}

// ---- Sleep ---------------------------------------------------------------------------------------------------------

class Sleeping : public testing::TestWithParam<bool> {};
INSTANTIATE_TEST_SUITE_P(Saved, Sleeping, testing::Bool());

TEST_P(Sleeping, BlocksHaveTheirCanariesAgainWhenTheyWake) {
  GuardedWorld world("heap:pages");
  CachingAllocator& allocator = world.allocator;
  allocator.begin_tagged("weights");
  void* const block = world.allocate(1000);
  void* const smashed = world.allocate(1000);
  void* const freed_asleep = world.allocate(1000);
  world.allocator.deallocate(world.allocate(1000));  // in quarantine: it leaves before
  allocator.end_tagged("weights");
  smash(world, smashed, -5);
  allocator.release_physical("weights", GetParam());
  EXPECT_EQ(world.take_one().offset, -5);
  EXPECT_TRUE(AllocatorGuard(allocator).check().size() == 1u);  // of sleep; nothing is looked at now
  allocator.deallocate(freed_asleep);
  allocator.restore_physical("weights");
  EXPECT_TRUE(AllocatorGuard(allocator).check().empty());
  smash(world, block, 1000);
  smash(world, smashed, 1001);
  allocator.deallocate(block);
  EXPECT_EQ(world.take_one().offset, 1000);
  allocator.deallocate(smashed);
  EXPECT_EQ(world.take_one().offset, 1001);
}

// A block that is freed after the quarantine was emptied for the sleep is in quarantine while it sleeps.
TEST(GuardedSleep, MayBeginWhileAnotherThreadFrees) {
  GuardedWorld world("heap:pages");
  CachingAllocator& allocator = world.allocator;
  for (std::size_t i = 0; i < scaled(5000); ++i) {
    allocator.begin_tagged("weights");
    void* const ptr = world.allocate(kMiB);
    allocator.end_tagged("weights");
    std::atomic<bool> goes{false};
    std::thread other([&] {
      while (!goes) continue;
      for (std::size_t turn = 0; turn < i % 50 * 20; ++turn) std::atomic_signal_fence(std::memory_order_seq_cst);
      allocator.deallocate(ptr);
    });
    goes = true;
    allocator.release_physical("weights");
    other.join();
    AllocatorGuard(allocator).check();
    ASSERT_NO_THROW(allocator.restore_physical("weights"));
  }
}

TEST(GuardedSleep, ADeviceThatRefusesLeavesAllOfItSound) {
  for (const bool save : {false, true}) {
    for (std::uint64_t nth = 1; nth < 200; ++nth) {
      GuardedWorld world("heap:pages");
      world.allocator.begin_tagged("weights");
      void* const block = world.allocate(3 * kMiB);
      world.allocator.end_tagged("weights");
      world.allocator.deallocate(world.allocate(1000));
      world.device->set_faults({Fault{.nth = nth, .out_of_memory = false, .code = 700}});
      bool refused = false;
      for (int attempt = 0; attempt < 2; ++attempt) {
        try {
          world.allocator.release_physical("weights", save);
          world.allocator.restore_physical("weights");
        } catch (const CudaError&) {
          refused = true;
        }
      }
      world.device->set_faults({});
      world.allocator.restore_physical("weights");
      ASSERT_TRUE(AllocatorGuard(world.allocator).check().empty()) << nth;
      smash(world, block, 3 * kMiB);
      world.allocator.deallocate(block);
      ASSERT_EQ(world.take_one().offset, as_signed(3 * kMiB)) << nth;
      if (!refused) break;
      ASSERT_LT(nth, 199u);
    }
  }
}

// ---- Sharing -------------------------------------------------------------------------------------------------------

TEST_P(GuardedHeaps, AnotherProcessFindsTheUsersBytes) {
  GuardedWorld world(GetParam());
  GuardedWorld importer;
  void* const block = world.allocate(3'000'000);
  const SharedMemory shared = world.allocator.share(block);
  void* const base = importer.allocator.open_shared(shared);
  const auto here = importer.device->memory_at(address(base) + shared.offset);
  const auto there = world.device->memory_at(address(block));
  ASSERT_TRUE(here && there);
  EXPECT_GE(shared.bytes, 3'000'000u);
  EXPECT_EQ(shared.offset % 2'097'152, address(block) % 2'097'152);
  EXPECT_GE(world.allocator.handle_count(block), 1u);
  importer.allocator.close_shared(base);
  world.allocator.deallocate(block);
}

}  // namespace
}  // namespace cachalot
