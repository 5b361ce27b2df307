// Tests of scarce memory: garbage collection, the memory that is given back and its order, and the final message.
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

#include "tests/allocator/testing.h"

namespace cachalot {
namespace {

// ---- Giving back

TEST(WhenTheDeviceIsFull, TheCacheIsGivenBackAndTheDeviceAskedAgain) {
  World world(60 * kMiB);
  void* first = world.allocate(30 * kMiB);
  void* second = world.allocate(24 * kMiB);
  world.allocator.deallocate(first);
  world.allocator.deallocate(second);
  world.allocate(50 * kMiB);
  const DeviceStats stats = world.allocator.memory_stats();
  EXPECT_EQ(stats.reserved_bytes.all.current, static_cast<std::int64_t>(50 * kMiB));
  EXPECT_EQ(stats.num_alloc_retries, 1);
  EXPECT_EQ(stats.num_sync_all_streams, 1);
  EXPECT_EQ(stats.num_device_alloc, 3);
  EXPECT_EQ(stats.num_device_free, 2);
  EXPECT_EQ(stats.num_ooms, 0);
}

TEST(WhenTheDeviceIsFull, SegmentsWithALiveBlockStay) {
  World world(60 * kMiB);
  world.allocate(2 * kMiB);  // pins 20 MiB
  world.allocator.deallocate(world.allocate(30 * kMiB));
  EXPECT_THROW(world.allocate(42 * kMiB), OutOfMemory);
  EXPECT_EQ(world.reserved(), 20 * kMiB);
  world.allocate(40 * kMiB);
}

TEST(WhenTheLimitIsReached, TheCacheIsGivenBackAsWell) {
  World world(kGiB);
  world.allocator.set_memory_fraction(60.0 / 1024);
  world.allocator.deallocate(world.allocate(30 * kMiB));
  world.allocate(50 * kMiB);
  EXPECT_EQ(world.reserved(), 50 * kMiB);
  EXPECT_EQ(world.allocator.memory_stats().num_alloc_retries, 1);
}

TEST(WhenTheDeviceIsFull, PendingFreesAreWaitedFor) {
  World world(60 * kMiB);
  const Stream other = world.device->new_stream();
  void* ptr = world.allocate(40 * kMiB);
  world.allocator.record_stream(ptr, other);
  world.launch(other, 777);
  world.allocator.deallocate(ptr);
  world.allocate(50 * kMiB);
  EXPECT_GE(world.device->clock_ns(), 777'000);
  EXPECT_EQ(world.active(), 50 * kMiB);
}

// ---- Waiting: for the work that frees the memory, in the order in which it ends (PyTorch's issue #171771)

TEST(WhenTheDeviceIsFull, TheFreeThatCompletesFirstIsWaitedForAlone) {
  for (const char* options : {"heap:segments", "heap:pages,immortal_streams:True"}) {
    SCOPED_TRACE(options);
    World world(100 * kMiB, options);
    const Stream slow = world.device->new_stream();
    const Stream fast = world.device->new_stream();
    for (const Stream user : {slow, fast}) {
      void* ptr = world.allocate(40 * kMiB);
      world.allocator.record_stream(ptr, user);
      world.launch(user, user == slow ? 5000 : 300);
      world.allocator.deallocate(ptr);
    }
    world.allocate(40 * kMiB);
    EXPECT_GE(world.device->clock_ns(), 300'000);
    EXPECT_LT(world.device->clock_ns(), 5'000'000);
    EXPECT_EQ(world.count(DeviceCall::synchronize), 0u);
    EXPECT_EQ(world.count(DeviceCall::free), 0u);
    EXPECT_EQ(world.allocator.memory_stats().num_sync_all_streams, 0);
  }
}

TEST(WhenTheDeviceIsFull, TheStreamThatFinishesFirstIsWaitedForAlone) {
  World world(100 * kMiB, "heap:pages,immortal_streams:True");
  const Stream slow = world.device->new_stream();
  const Stream fast = world.device->new_stream();
  for (const Stream user : {slow, fast}) {
    void* ptr = world.allocate(40 * kMiB, user);
    world.launch(user, user == slow ? 5000 : 300);
    world.allocator.deallocate(ptr);
  }
  world.allocate(40 * kMiB);
  EXPECT_GE(world.device->clock_ns(), 300'000);
  EXPECT_LT(world.device->clock_ns(), 5'000'000);
  EXPECT_EQ(world.count(DeviceCall::synchronize), 0u);
  world.allocate(50 * kMiB);
  EXPECT_GE(world.device->clock_ns(), 5'000'000);
}

TEST(AWaitThatIsForbidden, IsNotMade) {
  for (const char* options : {"heap:segments,oom_wait:never", "heap:segments,oom_wait:events",
                              "heap:pages,immortal_streams:True,oom_wait:never"}) {
    SCOPED_TRACE(options);
    World world(100 * kMiB, options);
    const Stream other = world.device->new_stream();
    void* idle = world.allocate(40 * kMiB, other);
    void* waiting = world.allocate(40 * kMiB);
    world.allocator.record_stream(waiting, other);
    world.launch(other, 300);
    world.allocator.deallocate(idle);
    world.allocator.deallocate(waiting);
    EXPECT_CONTAINS(out_of_memory([&] { world.allocate(90 * kMiB); }), "did not wait for");
    EXPECT_EQ(world.count(DeviceCall::synchronize) + world.count(DeviceCall::free), 0u);
    const bool waits = contains(options, "events");
    EXPECT_EQ(world.count(DeviceCall::event_synchronize) != 0, waits);
    EXPECT_EQ(world.device->clock_ns() >= 300'000, waits);
    EXPECT_EQ(world.allocator.memory_stats().num_ooms, 1);
    world.pass(1000);
    world.allocate(40 * kMiB);  // its work is done by now
  }
}

TEST(AWaitForEvents, MayServeWhatAWaitForTheDeviceWould) {
  World world(100 * kMiB, "heap:pages,immortal_streams:True,oom_wait:events");
  const Stream other = world.device->new_stream();
  void* idle = world.allocate(40 * kMiB, other);
  void* waiting = world.allocate(40 * kMiB);
  world.allocator.record_stream(waiting, other);
  world.launch(other, 300);
  world.allocator.deallocate(idle);
  world.allocator.deallocate(waiting);
  world.allocate(90 * kMiB);
  EXPECT_EQ(world.count(DeviceCall::synchronize), 0u);
}

TEST(AHundredRecordedTensors, NeverRunOutOfMemory) {
  // The steps are those of PyTorch's test_caching_allocator_record_stream_oom.
  World world(2 * kGiB);
  const Stream other = world.device->new_stream();
  const Stream main = world.device->new_stream();
  world.allocate(160 * kMiB, other);
  for (int i = 0; i < 100; ++i) {
    void* ptr = world.allocate(160 * kMiB, main);
    world.launch(other, 1000);
    world.allocator.record_stream(ptr, other);
    world.allocator.deallocate(ptr);
  }
  EXPECT_EQ(world.allocator.memory_stats().num_ooms, 0);
}

TEST(WithMaxSplitSize, TheLargestBlocksAreGivenBackUntilTheyAreEnough) {
  World world(100 * kMiB, "max_split_size_mb:20");
  void* small = world.allocate(22 * kMiB);
  void* enough = world.allocate(30 * kMiB);
  void* more = world.allocate(40 * kMiB);
  for (void* ptr : {small, enough, more}) world.allocator.deallocate(ptr);
  // 8 MiB are left and no block has 44: 40 and 30 go.
  world.allocate(44 * kMiB);
  EXPECT_EQ(picture(world.allocator), "free 23068672\nlive 46137344\n");
  const DeviceStats stats = world.allocator.memory_stats();
  EXPECT_EQ(stats.num_alloc_retries, 0);
  EXPECT_EQ(stats.num_sync_all_streams, 0);
  EXPECT_EQ(stats.num_device_free, 2);
}

TEST(WithMaxSplitSize, TheBestFittingBlockIsGivenBackAlone) {
  World world(100 * kMiB, "max_split_size_mb:20,max_non_split_rounding_mb:20");
  void* narrow = world.allocate(44 * kMiB);
  void* wide = world.allocate(50 * kMiB);
  world.allocator.deallocate(narrow);
  world.allocator.deallocate(wide);
  world.allocate(20 * kMiB);  // 44 >= 20 + 20: neither block may serve it
  EXPECT_EQ(picture(world.allocator), "free 52428800\nlive 20971520\n");
  EXPECT_EQ(world.allocator.memory_stats().num_device_free, 1);
}

TEST(WithMaxSplitSize, ASmallerRequestGivesBackAnOversizeBlock) {
  World world(64 * kMiB, "max_split_size_mb:20");
  void* pinned = world.allocate(22 * kMiB);
  void* cached = world.allocate(40 * kMiB);
  world.allocator.deallocate(cached);
  world.allocate(3 * kMiB);  // no block below 20 MiB is free, and an oversize one is not split
  EXPECT_EQ(world.reserved(), 42 * kMiB);
  EXPECT_EQ(world.allocator.memory_stats().num_alloc_retries, 0);
  world.allocator.deallocate(pinned);
}

TEST(WithMaxSplitSize, OversizeBlocksOfOtherStreamsGoOnlyInTheLastStep) {
  World world(64 * kMiB, "max_split_size_mb:20");
  world.allocator.deallocate(world.allocate(40 * kMiB, world.device->new_stream()));
  world.allocate(30 * kMiB);
  const DeviceStats stats = world.allocator.memory_stats();
  EXPECT_EQ(stats.num_alloc_retries, 1);
  EXPECT_EQ(stats.reserved_bytes.all.current, static_cast<std::int64_t>(30 * kMiB));
}

TEST(WithMaxSplitSize, TooFewOversizeBytesAreGivenBackNevertheless) {
  World world(64 * kMiB, "max_split_size_mb:20");
  world.allocator.deallocate(world.allocate(22 * kMiB));
  world.allocate(40 * kMiB);
  EXPECT_THROW(world.allocate(30 * kMiB), OutOfMemory);
  EXPECT_EQ(world.reserved(), 40 * kMiB);
}

// ---- Garbage collection: limit 100 MiB, threshold half of it

struct GarbageWorld : World {
  GarbageWorld() : World(200 * kMiB, "garbage_collection_threshold:0.5") { allocator.set_memory_fraction(0.5); }
};

TEST(GarbageCollection, GivesBackTheOldestBlocksAboveTheThreshold) {
  World world(200 * kMiB, "garbage_collection_threshold:0.6");
  world.allocator.set_memory_fraction(0.5);
  void* old = world.allocate(20 * kMiB);
  void* young = world.allocate(20 * kMiB);
  world.allocate(20 * kMiB);
  world.allocate(2 * kMiB);  // 80 MiB are held; this segment stays split
  world.allocator.deallocate(old);
  for (int i = 0; i < 10; ++i) world.allocator.deallocate(world.allocate(5 * kMiB));  // time is counted in searches
  world.allocator.deallocate(young);
  world.allocate(30 * kMiB);  // 20 MiB above the threshold: the older one is enough
  const DeviceStats stats = world.allocator.memory_stats();
  EXPECT_EQ(stats.num_device_free, 1);
  EXPECT_EQ(stats.num_alloc_retries, 0);
  EXPECT_EQ(world.allocate(20 * kMiB), young);
}

TEST(GarbageCollection, GoesOnWithYoungerBlocksUntilTheThresholdIsReached) {
  World world(200 * kMiB, "garbage_collection_threshold:0.5");
  world.allocator.set_memory_fraction(0.5);
  void* old = world.allocate(20 * kMiB);
  void* young = world.allocate(20 * kMiB);
  world.allocate(20 * kMiB);
  world.allocate(2 * kMiB);
  world.allocator.deallocate(old);
  for (int i = 0; i < 10; ++i) world.allocator.deallocate(world.allocate(5 * kMiB));
  world.allocator.deallocate(young);
  world.allocate(30 * kMiB);  // 30 MiB above the threshold
  EXPECT_EQ(world.allocator.memory_stats().num_device_free, 2);
}

TEST(GarbageCollection, NeverCutsAPassShort) {
  GarbageWorld world;
  const std::vector<void*> blocks = {world.allocate(20 * kMiB), world.allocate(20 * kMiB), world.allocate(20 * kMiB)};
  for (void* ptr : blocks) world.allocator.deallocate(ptr);  // of one age; 10 MiB above the threshold
  world.allocate(30 * kMiB);
  EXPECT_EQ(world.allocator.memory_stats().num_device_free, 3);
}

TEST(GarbageCollection, DoesNothingBelowTheThreshold) {
  GarbageWorld world;
  world.allocator.deallocate(world.allocate(50 * kMiB));
  world.allocator.deallocate(world.allocate(49 * kMiB, world.device->new_stream()));  // 50 held before: not above it
  EXPECT_EQ(world.allocator.memory_stats().num_device_free, 0);
}

TEST(GarbageCollection, NeedsAMemoryFraction) {
  World world(200 * kMiB, "garbage_collection_threshold:0.5");
  world.allocator.deallocate(world.allocate(120 * kMiB));
  world.allocator.deallocate(world.allocate(20 * kMiB, world.device->new_stream()));
  EXPECT_EQ(world.allocator.memory_stats().num_device_free, 0);
}

TEST(GarbageCollection, LeavesSplitAndSmallSegmentsAlone) {
  GarbageWorld world;
  world.allocate(2 * kMiB);  // 18 MiB of a split segment stay free
  world.allocator.deallocate(world.allocate(1000));
  void* whole = world.allocate(40 * kMiB);
  world.allocator.deallocate(whole);
  world.allocate(30 * kMiB, world.device->new_stream());
  EXPECT_EQ(picture(world.allocator), "live 2097152 | free 18874368\nfree 2097152\nlive 31457280\n");
}

TEST(GarbageCollection, DoesNotWaitForEvents) {
  GarbageWorld world;
  const Stream other = world.device->new_stream();
  void* ptr = world.allocate(60 * kMiB);
  world.allocator.record_stream(ptr, other);
  world.launch(other, 1000);
  world.allocator.deallocate(ptr);
  world.allocate(20 * kMiB);
  EXPECT_EQ(world.allocator.memory_stats().num_device_free, 0);
  EXPECT_EQ(world.device->clock_ns(), 0);
}

TEST(GarbageCollection, ReachesOtherStreamsBlocks) {
  GarbageWorld world;
  world.allocator.deallocate(world.allocate(60 * kMiB, world.device->new_stream()));
  world.allocate(20 * kMiB);
  EXPECT_EQ(world.reserved(), 20 * kMiB);
}

// ---- Callbacks: asked before the allocator grows

TEST(AFreeMemoryCallback, IsAskedOnAMissAndOnlyThen) {
  World world;
  int asked = 0;
  world.allocator.add_free_memory_callback([&] { return ++asked < 0; });
  void* ptr = world.allocate(1000);
  EXPECT_EQ(asked, 1);
  world.allocate(1000);
  world.allocator.deallocate(ptr);
  world.allocate(1000);
  EXPECT_EQ(asked, 1);
  world.allocate(3 * kMiB);
  EXPECT_EQ(asked, 2);
}

TEST(AFreeMemoryCallback, MayFreeWhatTheRequestThenGets) {
  World world;
  void* held = world.allocate(30 * kMiB);
  world.allocator.add_free_memory_callback([&] {
    if (held == nullptr) return false;
    world.allocator.deallocate(held);
    held = nullptr;
    return true;
  });
  void* expected = held;
  EXPECT_EQ(world.allocate(30 * kMiB), expected);
  EXPECT_EQ(world.segments(), 1);
}

TEST(FreeMemoryCallbacks, AreAllAsked) {
  World world;
  std::string order;
  world.allocator.add_free_memory_callback([&] { return order += "a", true; });
  world.allocator.add_free_memory_callback([&] { return order += "b", false; });
  world.allocate(1000);
  EXPECT_EQ(order, "ab");
}

TEST(AFreeMemoryCallback, MayAllocateItself) {
  World world;
  bool busy = false;
  void* inner = nullptr;
  world.allocator.add_free_memory_callback([&] {
    if (busy) return false;
    busy = true;
    inner = world.allocate(2 * kMiB);  // grows, and asks again
    return true;
  });
  void* ptr = world.allocate(3 * kMiB);
  EXPECT_EQ(ptr, after(inner, 2 * kMiB));
  EXPECT_EQ(world.segments(), 1);
}

TEST(AFreeMemoryCallback, ThatThrowsLeavesTheAllocatorAsItWas) {
  World world;
  bool angry = true;
  world.allocator.add_free_memory_callback([&]() -> bool {
    if (angry) throw std::runtime_error("no");
    return false;
  });
  const DeviceStats before = world.allocator.memory_stats();
  EXPECT_THROW(world.allocate(1000), std::runtime_error);
  EXPECT_EQ(world.allocator.memory_stats(), before);
  EXPECT_EQ(world.allocator.validate(), "");
  angry = false;
  world.allocate(1000);
}

// ---- Observers: told before the exception

TEST(AnObserver, IsToldTheSegmentsSizeTheLimitAndTheDevicesFreeMemory) {
  World world(100 * kMiB);
  std::vector<OutOfMemoryReport> reports;
  world.allocator.add_out_of_memory_observer([&](const OutOfMemoryReport& report) { reports.push_back(report); });
  world.allocate(91 * kMiB);
  EXPECT_THROW(world.allocate(3 * kMiB), OutOfMemory);
  ASSERT_EQ(reports.size(), 1u);
  EXPECT_EQ(reports[0].device, 0);
  EXPECT_EQ(reports[0].segment_bytes, 20 * kMiB);
  EXPECT_EQ(reports[0].allowed_bytes, 100 * kMiB);
  EXPECT_EQ(reports[0].device_free_bytes, 8 * kMiB);
  EXPECT_EQ(reports[0].device_total_bytes, 100 * kMiB);
  EXPECT_EQ(reports[0].requested_bytes, 3 * kMiB);
  EXPECT_EQ(reports[0].stream, nullptr);
  EXPECT_TRUE(reports[0].pool.is_default());
  world.allocator.set_memory_fraction(0.95);
  EXPECT_THROW(world.allocate(3 * kMiB), OutOfMemory);
  ASSERT_EQ(reports.size(), 2u);
  EXPECT_EQ(reports[1].allowed_bytes, 95 * kMiB);
}

TEST(AnObserver, IsToldWhichStreamAndPoolRanOut) {
  World world(40 * kMiB);
  const PoolId pool{0, 7};
  std::vector<OutOfMemoryReport> reports;
  world.allocator.add_out_of_memory_observer([&](const OutOfMemoryReport& report) { reports.push_back(report); });
  world.allocator.begin_allocate_to_pool(
      0, pool, [](Stream) { return true; }, RedirectFor::capture);
  const Stream stream = world.device->new_stream();
  EXPECT_THROW(world.allocate(50 * kMiB, stream), OutOfMemory);
  world.allocator.end_allocate_to_pool(0, pool);
  world.allocator.release_pool(0, pool);
  ASSERT_EQ(reports.size(), 1u);
  EXPECT_EQ(reports[0].stream, stream);
  EXPECT_EQ(reports[0].pool, pool);
}

TEST(AnObserver, MayCallTheAllocator) {
  World world(40 * kMiB);
  std::size_t allocated = 0;
  void* spare = world.allocate(30 * kMiB);
  world.allocator.add_out_of_memory_observer([&](const OutOfMemoryReport&) {
    allocated = world.allocated();
    world.allocator.deallocate(spare);
    spare = world.allocate(1000);
    world.allocator.snapshot();
  });
  EXPECT_THROW(world.allocate(20 * kMiB), OutOfMemory);
  EXPECT_EQ(allocated, 30 * kMiB);
  EXPECT_EQ(world.allocated(), 1024u);
}

TEST(Observers, SeeTheOutOfMemoryAlreadyCounted) {
  World world(10 * kMiB);
  std::int64_t counted = 0;
  world.allocator.add_out_of_memory_observer(
      [&](const OutOfMemoryReport&) { counted = world.allocator.memory_stats().num_ooms; });
  EXPECT_THROW(world.allocate(20 * kMiB), OutOfMemory);
  EXPECT_EQ(counted, 1);
  EXPECT_EQ(world.allocator.memory_stats().num_alloc_retries, 1);
}

// ---- The message

TEST(TheMessage, SaysWhatTheUserNeedsNext) {
  World world(100 * kMiB);
  world.allocate(21 * kMiB);  // allocated 22 MiB, requested 21
  world.allocate(4 * kMiB);   // a 20 MiB segment …
  world.allocate(3 * kMiB);   // … of which 13 MiB stay free
  world.allocator.set_memory_fraction(0.75);
  const std::string message = out_of_memory([&] { world.allocate(50 * kMiB + 100); });
  EXPECT_CONTAINS(message, "50.00 MiB");   // asked: 50 MiB + 100 bytes
  EXPECT_CONTAINS(message, "52.00 MiB");   // the segment
  EXPECT_CONTAINS(message, "29.00 MiB");   // allocated: 22 + 4 + 3
  EXPECT_CONTAINS(message, "28.00 MiB");   // requested
  EXPECT_CONTAINS(message, "42.00 MiB");   // reserved
  EXPECT_CONTAINS(message, "13.00 MiB");   // cached, and the largest free block
  EXPECT_CONTAINS(message, "75.00 MiB");   // the limit
  EXPECT_CONTAINS(message, "58.00 MiB");   // the device's free memory
  EXPECT_CONTAINS(message, "100.00 MiB");  // and its total
}

TEST(TheMessage, NamesBytesThatWaitForOtherStreams) {
  World world(60 * kMiB);
  const Stream captured = world.device->new_stream();
  const Stream other = world.device->new_stream();
  void* waiting = world.allocate(7 * kMiB);
  world.allocate(2 * kMiB);
  world.allocator.record_stream(waiting, other);
  const Capture capture(world, captured, {1, 0});  // so that nothing is waited for
  world.launch(other, 1000);
  world.allocator.deallocate(waiting);
  const std::string message = out_of_memory([&] { world.allocate(50 * kMiB); });
  EXPECT_CONTAINS(message, "7.00 MiB");
}

TEST(TheMessage, SaysTheLargestFreeBlockAndAllThatIsCached) {
  World world(40 * kMiB);
  void* ptr = world.allocate(5 * kMiB);
  world.allocate(2 * kMiB);  // 13 MiB stay free behind it
  world.allocator.deallocate(ptr);
  const std::string message = out_of_memory([&] { world.allocate(30 * kMiB); });
  EXPECT_CONTAINS(message, "18.00 MiB");  // cached
  EXPECT_CONTAINS(message, "13.00 MiB");  // the largest free block
}

TEST(TheMessage, NamesNoAmountOfZero) {
  World world(40 * kMiB);
  const std::string empty = out_of_memory([&] { world.allocate(50 * kMiB); });
  EXPECT_CONTAINS(empty, "The request was for 50.00 MiB. This allocator holds no memory of the device.");
  EXPECT_FALSE(contains(empty, " 0 bytes")) << empty;
  world.allocate(30 * kMiB);
  const std::string full = out_of_memory([&] { world.allocate(20 * kMiB); });
  EXPECT_CONTAINS(full, "30.00 MiB is allocated and 30.00 MiB is reserved. No reserved memory is free.");
  EXPECT_FALSE(contains(full, " 0 bytes")) << full;
}

TEST(TheMessage, SaysThatFreeBlocksAreOtherStreams) {
  World world(40 * kMiB);
  const Stream other = world.device->new_stream();
  world.allocate(2 * kMiB, other);  // 18 MiB stay free, for the other stream
  const std::string message = out_of_memory([&] { world.allocate(30 * kMiB); });
  EXPECT_CONTAINS(message, "18.00 MiB is reserved but unallocated. This stream could use no free block");
  EXPECT_CONTAINS(message, "the largest of all is 18.00 MiB");
}

TEST(AnOutOfMemory, CarriesDeviceAndRequest) {
  World world(10 * kMiB);
  try {
    world.allocate(12'345'678);
    FAIL() << "the device has 10 MiB";
  } catch (const OutOfMemory& error) {
    EXPECT_EQ(error.device(), 0);
    EXPECT_EQ(error.requested_bytes(), 12'345'678u);
  }
}

TEST(AfterAnOutOfMemory, WhatFitsIsServed) {
  // The steps are those of PyTorch's test_out_of_memory_retry: half and half again does not fit; after the first is
  // freed it does.
  World world(100 * kMiB);
  void* first = world.allocate(50 * kMiB);
  EXPECT_THROW(world.allocate(52 * kMiB), OutOfMemory);
  EXPECT_EQ(world.allocated(), 50 * kMiB);
  world.allocate(1000);
  world.allocator.deallocate(first);
  world.allocate(52 * kMiB);
  EXPECT_EQ(world.allocator.memory_stats().num_ooms, 1);
}

TEST(ADeviceSmallerThanASegment, IsOutOfMemoryAndNothingElse) {
  World world(10 * kMiB);
  EXPECT_THROW(world.allocate(2 * kMiB), OutOfMemory);  // its segment would be 20 MiB
  void* ptr = world.allocate(1000);
  EXPECT_EQ(world.reserved(), 2 * kMiB);
  world.allocator.deallocate(ptr);
}

// ---- Under capture

TEST(DuringACapture, TheCacheIsNotGivenBack) {
  World world(60 * kMiB);
  world.allocator.deallocate(world.allocate(40 * kMiB));
  const Stream captured = world.device->new_stream();
  {
    const Capture capture(world, captured, {1, 0});
    EXPECT_THROW(world.allocate(30 * kMiB, captured), OutOfMemory);
    EXPECT_EQ(world.allocator.memory_stats().num_alloc_retries, 0);
    EXPECT_EQ(world.count(DeviceCall::free), 0u);
  }
  world.allocate(30 * kMiB, captured);
  EXPECT_EQ(world.allocator.memory_stats().num_alloc_retries, 1);
}

TEST(DuringACapture, EmptyCacheDoesNothing) {
  World world;
  world.allocator.deallocate(world.allocate(40 * kMiB));
  const Stream captured = world.device->new_stream();
  {
    const Capture capture(world, captured, {1, 0});
    world.allocator.empty_cache();
    on_another_thread([&] { world.allocator.empty_cache(); });
    EXPECT_EQ(world.reserved(), 40 * kMiB);
  }
  world.allocator.empty_cache();
  EXPECT_EQ(world.reserved(), 0u);
}

// cudaFree is not allowed during a capture and would spoil it: nothing is given back, by whatever step.

TEST(DuringACapture, EmptyCacheLeavesReleasedPoolsAlone) {
  World world;
  {
    const InPool in_pool(world.allocator, {0, 1});
    world.allocator.deallocate(world.allocate(5 * kMiB));
  }
  {
    const Capture capture(world, world.device->new_stream(), {1, 0});
    EXPECT_NO_THROW(world.allocator.empty_cache());
    EXPECT_NO_THROW(world.allocator.empty_cache(0, {0, 1}));
    EXPECT_EQ(world.reserved(), 20 * kMiB);
  }
  world.allocator.empty_cache();
  EXPECT_EQ(world.reserved(), 0u);
}

TEST(DuringACapture, GarbageIsNotCollected) {
  GarbageWorld world;
  world.allocator.deallocate(world.allocate(60 * kMiB));
  const Capture capture(world, world.device->new_stream(), {1, 0});
  EXPECT_NO_THROW(world.allocate(20 * kMiB, world.device->new_stream()));
  EXPECT_EQ(world.count(DeviceCall::free), 0u);
}

TEST(DuringACapture, OversizeBlocksAreNotGivenBack) {
  World world(64 * kMiB, "max_split_size_mb:20");
  world.allocator.deallocate(world.allocate(50 * kMiB));
  const Capture capture(world, world.device->new_stream(), {1, 0});
  EXPECT_THROW(world.allocate(3 * kMiB), OutOfMemory);  // in PyTorch: a CUDA error
  EXPECT_EQ(world.count(DeviceCall::free), 0u);
}

}  // namespace
}  // namespace cachalot
