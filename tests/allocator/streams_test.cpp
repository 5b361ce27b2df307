// Memory used on several streams: the contract of record_stream, and the time when freed memory comes back.
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "tests/allocator/testing.h"

namespace cachalot {
namespace {

// A block of `bytes` of the default stream, freed while `other` still works with it for `microseconds`.
void* free_while_in_use(World& world, std::size_t bytes, Stream other, std::int64_t microseconds = 1000) {
  void* ptr = world.allocate(bytes);
  world.allocator.record_stream(ptr, other);
  world.launch(other, microseconds);
  world.allocator.deallocate(ptr);
  return ptr;
}

TEST(RecordStream, DelaysReuseUntilTheStreamsWorkIsDone) {
  World world;
  void* ptr = free_while_in_use(world, 4096, world.device->new_stream(), 1000);
  EXPECT_NE(world.allocate(4096), ptr);
  world.pass(999);
  EXPECT_NE(world.allocate(4096), ptr);
  world.pass(1);
  EXPECT_EQ(world.allocate(4096), ptr);
}

TEST(RecordStream, OfTheBlocksOwnStreamIsIgnored) {
  World world;
  const Stream own = world.device->new_stream();
  void* ptr = world.allocate(4096, own);
  world.allocator.record_stream(ptr, own);
  world.launch(own);
  world.allocator.deallocate(ptr);
  EXPECT_EQ(world.count(DeviceCall::event_record), 0u);
  EXPECT_EQ(world.allocate(4096, own), ptr);
}

TEST(RecordStream, OfNoMemoryIsIgnored) {
  World world;
  world.allocator.record_stream(nullptr, world.device->new_stream());
  EXPECT_EQ(world.count(DeviceCall::event_record), 0u);
}

TEST(RecordStream, WithNoWorkQueuedCostsOneMallocsWait) {
  World world;
  void* ptr = world.allocate(4096);
  world.allocator.record_stream(ptr, world.device->new_stream());
  world.allocator.deallocate(ptr);
  EXPECT_EQ(world.active(), 4096u);  // the event was not queried yet
  EXPECT_EQ(world.allocate(4096), ptr);
}

TEST(RecordStream, OfTheDefaultStreamCountsForABlockOfAnother) {
  World world;
  const Stream own = world.device->new_stream();
  void* ptr = world.allocate(4096, own);
  world.allocator.record_stream(ptr, nullptr);
  world.launch(nullptr, 100);
  world.allocator.deallocate(ptr);
  EXPECT_NE(world.allocate(4096, own), ptr);
  world.pass(100);
  EXPECT_EQ(world.allocate(4096, own), ptr);
}

// CUDA's answers for it are CUDA_ERROR_INVALID_HANDLE and CUDA_ERROR_CONTEXT_IS_DESTROYED. The latter is also what a reset of
// the device gives; but other streams' work goes on here.
TEST(RecordStream, OfAStreamThatWasDestroyedMakesTheFreeWaitForTheDevice) {
  for (const char* options : {"heap:segments", "heap:pages"}) {
    for (const int code : {400, 709}) {
      SCOPED_TRACE(options + std::to_string(code));
      World world(64 * kGiB, options);
      const Stream busy = world.device->new_stream();
      void* ptr = world.allocate(8 * kMiB);
      world.allocator.record_stream(ptr, busy);
      world.allocator.record_stream(ptr, world.device->new_stream());  // the one that is gone: asked first
      world.launch(busy);
      world.device->set_faults({{.call = DeviceCall::event_record, .out_of_memory = false, .code = code}});
      world.allocator.deallocate(ptr);
      EXPECT_EQ(world.device->faults_injected(), 1u);
      EXPECT_TRUE(world.device->stream_query(busy)) << "the block would be used while this stream works with it";
      EXPECT_EQ(world.count(DeviceCall::synchronize), 1u);
      EXPECT_EQ(world.allocate(8 * kMiB), ptr);
    }
  }
}

TEST(RecordStream, TwiceForAStreamIsOneEvent) {
  World world;
  const Stream other = world.device->new_stream();
  void* ptr = world.allocate(4096);
  world.allocator.record_stream(ptr, other);
  world.allocator.record_stream(ptr, other);
  EXPECT_EQ(world.count(DeviceCall::event_record), 0u);
  world.allocator.deallocate(ptr);
  EXPECT_EQ(world.count(DeviceCall::event_record), 1u);
}

TEST(RecordStream, CoversWorkQueuedUpToTheFree) {
  World world;
  const Stream other = world.device->new_stream();
  void* ptr = world.allocate(4096);
  world.allocator.record_stream(ptr, other);
  world.launch(other, 500);  // after record_stream, before the free
  world.allocator.deallocate(ptr);
  world.launch(other, 5000);  // after the free: it is not waited for
  EXPECT_NE(world.allocate(4096), ptr);
  world.pass(500);
  EXPECT_EQ(world.allocate(4096), ptr);
}

TEST(RecordStream, IsForgottenOnceTheBlockCameBack) {
  World world;
  void* ptr = free_while_in_use(world, 4096, world.device->new_stream());
  world.pass(1000);
  ASSERT_EQ(world.allocate(4096), ptr);
  world.allocator.deallocate(ptr);
  EXPECT_EQ(world.allocate(4096), ptr);
  EXPECT_EQ(world.count(DeviceCall::event_record), 1u);
}

TEST(ABlockUsedOnSeveralStreams, WaitsForAllOfThem) {
  World world;
  const std::vector<Stream> others = {world.device->new_stream(), world.device->new_stream(),
                                      world.device->new_stream()};
  void* ptr = world.allocate(4096);
  std::int64_t microseconds = 300;
  for (const Stream other : others) {
    world.allocator.record_stream(ptr, other);
    world.launch(other, microseconds);
    microseconds -= 100;
  }
  world.allocator.deallocate(ptr);
  EXPECT_EQ(world.count(DeviceCall::event_record), 3u);
  for (int i = 0; i < 3; ++i) {
    EXPECT_NE(world.allocate(4096), ptr);
    world.pass(100);
  }
  EXPECT_EQ(world.allocate(4096), ptr);
}

TEST(AWaitingBlock, IsActiveButNotAllocated) {
  World world;
  free_while_in_use(world, 1000, world.device->new_stream());
  DeviceStats stats = world.allocator.memory_stats();
  EXPECT_EQ(stats.allocation.all.current, 0);
  EXPECT_EQ(stats.allocated_bytes.all.current, 0);
  EXPECT_EQ(stats.active.all.current, 1);
  EXPECT_EQ(stats.active_bytes.all.current, 1024);
  EXPECT_EQ(stats.requested_bytes.all.current, 1000);
  EXPECT_EQ(picture(world.allocator), "waiting 1024 | free 2096128\n");
  world.pass(1000);
  EXPECT_EQ(world.active(), 1024u);  // only a malloc looks
  world.allocate(512);
  EXPECT_EQ(picture(world.allocator), "live 512 | free 2096640\n");
}

TEST(AWaitingBlock, IsNotMergedWithItsNeighbours) {
  World world;
  void* before = world.allocate(1024);
  void* waiting = free_while_in_use(world, 2048, world.device->new_stream());
  EXPECT_EQ(after(before, 1024), waiting);
  world.allocator.deallocate(before);
  EXPECT_EQ(picture(world.allocator), "free 1024 | waiting 2048 | free 2094080\n");
  world.pass(1000);
  world.allocate(10 * kMiB);
  EXPECT_EQ(picture(world.allocator), "free 2097152\nlive 10485760\n");
}

TEST(AUsedButLiveNeighbour, DoesNotHoldUpAFree) {
  World world;
  void* first = world.allocate(1024);
  void* second = world.allocate(1024);
  world.allocator.record_stream(second, world.device->new_stream());
  world.allocator.deallocate(first);
  EXPECT_EQ(world.allocate(1024), first);
}

TEST(PendingFrees, ComeBackInTheOrderOfTheirStream) {
  World world;
  const Stream other = world.device->new_stream();
  void* first = free_while_in_use(world, 4096, other, 100);
  void* second = free_while_in_use(world, 4096, other, 100);
  world.pass(100);
  EXPECT_EQ(world.allocate(4096), first);
  EXPECT_NE(world.allocate(4096), second);
  world.pass(100);
  EXPECT_EQ(world.allocate(4096), second);
}

TEST(PendingFrees, OfOneStreamDoNotWaitForAnother) {
  World world;
  void* slow = free_while_in_use(world, 4096, world.device->new_stream(), 10'000);
  void* quick = free_while_in_use(world, 4096, world.device->new_stream(), 100);
  world.pass(100);
  EXPECT_EQ(world.allocate(4096), quick);
  world.pass(9900);
  EXPECT_EQ(world.allocate(4096), slow);
}

TEST(AMallocOfAnyStreamAndSize, ReclaimsWhatIsDone) {
  World world;
  free_while_in_use(world, 4096, world.device->new_stream(), 100);
  world.pass(100);
  world.allocate(30 * kMiB, world.device->new_stream());
  EXPECT_EQ(world.active(), 30 * kMiB);
}

TEST(EmptyCache, WaitsForPendingFrees) {
  World world;
  free_while_in_use(world, 4096, world.device->new_stream(), 5000);
  world.allocator.empty_cache();
  EXPECT_EQ(world.reserved(), 0u);
  EXPECT_GE(world.device->clock_ns(), 5'000'000);
  EXPECT_EQ(world.allocator.memory_stats().num_sync_all_streams, 1);
}

// A destructor's free that the device refuses is completed when the cache is emptied, or memory runs out.
TEST(AFreeThatTheDeviceRefuses, ComesWhenItCan) {
  for (const bool runs_out : {false, true}) {
    World world(40 * kMiB);
    const Stream other = world.device->new_stream();
    void* const ptr = world.allocate(30 * kMiB);
    world.allocator.record_stream(ptr, other);
    world.device->set_faults({{.call = DeviceCall::event_record, .out_of_memory = false, .code = 999}});
    world.allocator.deallocate_when_possible(ptr);
    EXPECT_EQ(world.allocated(), 30 * kMiB);
    EXPECT_EQ(world.allocator.validate(), "");
    if (runs_out) {
      void* const next = world.allocate(30 * kMiB);
      EXPECT_EQ(world.allocated(), 30 * kMiB);
      world.allocator.deallocate(next);
    } else {
      world.allocator.empty_cache();
      EXPECT_EQ(world.reserved(), 0u);
    }
    EXPECT_EQ(world.allocated(), 0u);
  }
}

// Two allocations that another stream uses, freed while the device refuses every event.
std::vector<void*> freed_in_vain(World& world) {
  const Stream other = world.device->new_stream();
  std::vector<void*> blocks = {world.allocate(1000), world.allocate(2000)};
  for (void* const ptr : blocks) world.allocator.record_stream(ptr, other);
  world.device->set_faults({{.call = DeviceCall::event_record, .out_of_memory = false, .code = 999, .repeat = true}});
  for (void* const ptr : blocks) world.allocator.deallocate_when_possible(ptr);
  return blocks;
}

TEST(AFreeThatTheDeviceRefuses, StaysWhileTheDeviceRefuses) {
  World world;
  freed_in_vain(world);
  world.allocator.empty_cache();
  EXPECT_EQ(world.allocated(), 3072u);
  world.device->set_faults({});
  world.allocator.empty_cache();
  EXPECT_EQ(world.reserved(), 0u);
}

// The memory is freed elsewhere, as restore_pool may do.
TEST(AFreeThatTheDeviceRefuses, IsDoneWhenSomebodyElseHasFreedTheMemory) {
  World world;
  const std::vector<void*> blocks = freed_in_vain(world);
  world.device->set_faults({});
  world.allocator.deallocate(blocks.front());
  world.allocator.empty_cache();
  EXPECT_EQ(world.reserved(), 0u);
}

TEST(ASizedFreeOnAnotherStream, CountsAsAUseThere) {
  World world;
  const Stream other = world.device->new_stream();
  void* ptr = world.allocate(4096);
  world.launch(other, 100);
  world.allocator.deallocate(ptr, 4096, 0, other);
  EXPECT_EQ(world.count(DeviceCall::event_record), 1u);
  EXPECT_NE(world.allocate(4096), ptr);
  world.pass(100);
  EXPECT_EQ(world.allocate(4096), ptr);
}

TEST(StreamsThatComeAndGo, AreServedLikeAnyOther) {
  World world;
  const Stream slow = world.device->new_stream();
  void* waiting = free_while_in_use(world, 8192, slow, 1'000'000);
  for (int i = 0; i < 200; ++i) {
    const Stream brief = world.device->new_stream();
    void* ptr = free_while_in_use(world, 4096, brief, 10);
    ASSERT_NE(world.allocate(4096), ptr);
    world.pass(10);
    ASSERT_EQ(world.allocate(4096), ptr);
  }
  EXPECT_NE(world.allocate(8192), waiting);
  world.pass(1'000'000);
  EXPECT_EQ(world.allocate(8192), waiting);
}

TEST(ManyStreamsAtOnce, AreAllWaitedFor) {
  World world;
  std::vector<void*> waiting;
  for (int i = 1; i <= 100; ++i) waiting.push_back(free_while_in_use(world, 4096, world.device->new_stream(), i));
  for (void* ptr : waiting) {
    ASSERT_NE(world.allocate(4096), ptr);
    world.pass(1);
    ASSERT_EQ(world.allocate(4096), ptr);
  }
}

TEST(Events, AreUsedAgain) {
  World world;
  const Stream other = world.device->new_stream();
  for (int i = 0; i < 100; ++i) {
    free_while_in_use(world, 4096, other, 10);
    world.pass(10);
  }
  EXPECT_EQ(world.count(DeviceCall::event_record), 100u);
  EXPECT_LE(world.count(DeviceCall::event_create), 2u);
}

TEST(WithoutCompletionHints, WhatIsDoneComesBackAsWell) {
  SimulatedDevice::Config config = World::config_of(kGiB);
  config.completion_hints = false;
  World world(config);
  void* ptr = free_while_in_use(world, 4096, world.device->new_stream(), 100);
  EXPECT_NE(world.allocate(4096), ptr);
  world.pass(100);
  EXPECT_EQ(world.allocate(4096), ptr);
}

// ---- Capture: nothing may be queried, so frees with uses elsewhere wait for its end

TEST(DuringACapture, FreesUsedElsewhereAreDeferredWithoutEvents) {
  World world;
  const Stream captured = world.device->new_stream();
  const Stream other = world.device->new_stream();
  void* ptr = world.allocate(4096);
  world.allocator.record_stream(ptr, other);
  {
    const Capture capture(world, captured, {1, 0});
    world.launch(other, 100);
    world.allocator.deallocate(ptr);
    EXPECT_EQ(world.count(DeviceCall::event_record), 0u);
    EXPECT_EQ(world.active(), 4096u);
    world.pass(1000);
    EXPECT_NE(world.allocate(4096), ptr);
    EXPECT_EQ(world.count(DeviceCall::event_query), 0u);
  }
  EXPECT_EQ(world.allocate(4096), ptr);  // now the event was recorded, and all work is done
  EXPECT_EQ(world.count(DeviceCall::event_record), 1u);
}

TEST(DuringACapture, AFreeWhoseEventIsRefusedAfterwardsIsNotLost) {
  World world;
  const Stream captured = world.device->new_stream();
  void* const ptr = world.allocate(4096);
  world.allocator.record_stream(ptr, world.device->new_stream());
  {
    const Capture capture(world, captured, {1, 0});
    world.allocator.deallocate(ptr);
  }
  world.device->set_faults({{.call = DeviceCall::event_record, .out_of_memory = false, .code = 999}});
  EXPECT_THROW(world.allocate(4096), CudaError);
  EXPECT_EQ(world.allocate(4096), ptr);
}

TEST(DuringACapture, PendingFreesFromBeforeStayPending) {
  World world;
  const Stream captured = world.device->new_stream();
  void* ptr = free_while_in_use(world, 4096, world.device->new_stream(), 100);
  {
    const Capture capture(world, captured, {1, 0});
    world.pass(1000);
    EXPECT_NE(world.allocate(4096), ptr);
    EXPECT_EQ(world.active(), 2u * 4096);
  }
  EXPECT_EQ(world.allocate(4096), ptr);
}

TEST(DuringACapture, AFreeWithoutUsesElsewhereComesBackAtOnce) {
  World world;
  const Stream captured = world.device->new_stream();
  const Capture capture(world, captured, {1, 0});
  void* ptr = world.allocate(4096, captured);
  world.allocator.deallocate(ptr);
  EXPECT_EQ(world.allocate(4096, captured), ptr);
}

}  // namespace
}  // namespace cachalot
