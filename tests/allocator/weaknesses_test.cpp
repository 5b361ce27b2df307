// PyTorch's weaknesses that do not exist here (W1, W2, W4, W7, W8, W10, W11) and the two that are its policy (W5, W6).
// The first test of each would fail on PyTorch 2.11, where each was reproduced.
#include <gtest/gtest.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "tests/allocator/testing.h"

namespace cachalot {
namespace {

// ---- W1: out of memory although a block that fits waits for an event

TEST(W1, ABlockThatWaitsForAnEventServesTheRequestThatWouldElseFail) {
  World world(20 * kMiB);
  const Stream other = world.device->new_stream();
  void* waiting = world.allocate(9 * kMiB);
  world.allocate(5 * kMiB);  // pins the segment
  world.allocator.record_stream(waiting, other);
  world.launch(other, 1000);
  world.allocator.deallocate(waiting);
  EXPECT_EQ(world.allocate(9 * kMiB), waiting);
  EXPECT_EQ(world.allocator.memory_stats().num_ooms, 0);
  EXPECT_GE(world.device->clock_ns(), 1'000'000);
}

TEST(W1, BlocksThatMergeAfterTheirEventsServeALargerRequest) {
  World world(20 * kMiB);
  const Stream other = world.device->new_stream();
  const std::array<void*, 2> waiting = {world.allocate(4 * kMiB), world.allocate(4 * kMiB)};
  world.allocate(9 * kMiB);
  world.launch(other, 1000);
  for (void* ptr : waiting) {
    world.allocator.record_stream(ptr, other);
    world.allocator.deallocate(ptr);
  }
  EXPECT_EQ(world.allocate(8 * kMiB), waiting[0]);
}

// ---- W2: one thread's redirection into a pool stops every thread's recovery

TEST(W2, AnotherThreadsRedirectionDoesNotStopRecoveryFromOutOfMemory) {
  World world(60 * kMiB);
  const InPool in_pool(world.allocator, {0, 1});
  on_another_thread([&] {
    void* cached = world.allocate(40 * kMiB);
    world.allocator.deallocate(cached);
    world.allocate(50 * kMiB);
  });
  EXPECT_EQ(world.allocated(), 50 * kMiB);
  EXPECT_EQ(world.allocator.memory_stats().num_alloc_retries, 1);
}

TEST(W2, AnotherThreadsRedirectionDoesNotStopEmptyCache) {
  World world;
  world.allocator.deallocate(world.allocate(40 * kMiB));
  const InPool in_pool(world.allocator, {0, 1});
  on_another_thread([&] { world.allocator.empty_cache(); });
  EXPECT_EQ(world.reserved(), 0u);
}

TEST(W2, AnotherThreadsRedirectionDoesNotStopReclaiming) {
  World world;
  const Stream other = world.device->new_stream();
  void* ptr = world.allocate(4096);
  world.allocator.record_stream(ptr, other);
  world.launch(other, 100);
  const InPool in_pool(world.allocator, {0, 1});
  on_another_thread([&] {
    world.allocator.deallocate(ptr);
    EXPECT_EQ(world.count(DeviceCall::event_record), 1u);  // not deferred either
    world.pass(100);
    EXPECT_EQ(world.allocate(4096), ptr);
  });
}

TEST(W2, TheRedirectedThreadsOwnEmptyCacheStaysANoOp) {
  // The steps are those of PyTorch's test_mempool_emptycache_multithread.
  World world;
  world.allocator.deallocate(world.allocate(40 * kMiB));
  {
    const InPool in_pool(world.allocator, {0, 1});
    world.allocator.empty_cache();
    EXPECT_EQ(world.reserved(), 40 * kMiB);
  }
  world.allocator.empty_cache();
  EXPECT_EQ(world.reserved(), 0u);
}

TEST(W2, DuringACaptureNoThreadRecoversAsInPyTorch) {
  World world(60 * kMiB);
  world.allocator.deallocate(world.allocate(40 * kMiB));
  const Capture capture(world, world.device->new_stream(), {1, 0});
  on_another_thread([&] { EXPECT_THROW(world.allocate(50 * kMiB), OutOfMemory); });
  EXPECT_EQ(world.reserved(), 40 * kMiB);
}

// ---- W4: an event query a stream and malloc

struct Crowd : World {
  explicit Crowd(std::size_t streams) {
    for (std::size_t i = 0; i < streams; ++i) {
      const Stream other = device->new_stream();
      void* ptr = allocate(4096);
      allocator.record_stream(ptr, other);
      launch(other, 1'000'000 + static_cast<std::int64_t>(i) * 1000);
      allocator.deallocate(ptr);
      waiting.push_back(ptr);
    }
  }
  std::vector<void*> waiting;
};

TEST(W4, MallocsCostNoQueryWhileNothingIsNew) {
  Crowd world(16);
  world.allocate(512);  // may look at each once
  const std::uint64_t before = world.count(DeviceCall::event_query);
  for (int i = 0; i < 1000; ++i) world.allocator.deallocate(world.allocate(8192));
  EXPECT_EQ(world.count(DeviceCall::event_query), before);
}

TEST(W4, YetWhatIsDoneIsReclaimedByTheNextMalloc) {
  Crowd world(16);
  world.allocate(512);
  world.pass(1'000'000);
  for (void* ptr : world.waiting) {
    EXPECT_EQ(world.allocate(4096), ptr);
    EXPECT_NE(world.allocate(4096), ptr);
    world.pass(1000);
  }
}

TEST(W4, QueriesAreInProportionToWhatIsReclaimed) {
  Crowd world(16);
  world.allocate(512);
  const std::uint64_t before = world.count(DeviceCall::event_query);
  world.pass(2'000'000);
  world.allocate(512);
  EXPECT_EQ(world.allocator.memory_stats().active.all.current, 2);
  EXPECT_LE(world.count(DeviceCall::event_query), before + 2 * 16);
}

TEST(W4, AStreamWithSomethingNewIsAskedAlone) {
  Crowd world(16);
  world.allocate(512);
  const Stream other = world.device->new_stream();
  void* ptr = world.allocate(4096);
  world.allocator.record_stream(ptr, other);
  world.launch(other, 100);
  world.allocator.deallocate(ptr);
  world.allocate(512);
  const std::uint64_t before = world.count(DeviceCall::event_query);
  world.pass(100);
  EXPECT_EQ(world.allocate(4096), ptr);
  EXPECT_LE(world.count(DeviceCall::event_query), before + 2);
}

// ---- W5, W6: kept

TEST(W5, ALargeBlockMayCarryAMebibyteOfSlack) {
  World world;
  world.allocate(19 * kMiB);
  EXPECT_EQ(world.allocated(), 20 * kMiB);
  world.allocate(11 * kMiB);
  EXPECT_EQ(world.allocated(), 32 * kMiB);
  EXPECT_EQ(world.allocator.memory_stats().requested_bytes.all.current, static_cast<std::int64_t>(30 * kMiB));
}

TEST(W6, TheMaxSplitSizeFigureIsThatOfTheStart) {
  World world(kGiB, "max_split_size_mb:40");
  world.allocator.configure("max_split_size_mb:50");
  EXPECT_EQ(world.allocator.memory_stats().max_split_size, static_cast<std::int64_t>(40 * kMiB));
  EXPECT_EQ(world.allocator.snapshot().options.max_split_size, 50 * kMiB);
}

// ---- W7: what the message counts as allocated, and what it suggests

TEST(W7, CachedBytesOfPrivatePoolsAreNotCalledAllocated) {
  World world(60 * kMiB);
  world.allocator.create_or_retain_pool(0, {0, 1});
  {
    const InPool in_pool(world.allocator, {0, 1});
    world.allocator.deallocate(world.allocate(33 * kMiB));  // 34 MiB cached in the pool
  }
  world.allocate(7 * kMiB);
  const std::string message = out_of_memory([&] { world.allocate(50 * kMiB); });
  EXPECT_CONTAINS(message, "7.00 MiB");
  EXPECT_FALSE(contains(message, "41.00 MiB")) << message;  // 7 + 34
}

TEST(W7, NoBlanketHintIsGiven) {
  World world(60 * kMiB);
  const std::string message = out_of_memory([&] { world.allocate(70 * kMiB); });
  EXPECT_FALSE(contains(message, "expandable_segments")) << message;
}

// ---- W8: a parser that accepts malformed text and applies it in part

TEST(W8, MalformedTextIsRefusedWhole) {
  World world(kGiB, "max_split_size_mb:64");
  const Options before = world.allocator.options();
  for (const char* text :
       {"max_split_size_mb,100", "max_split_size_mb:100,", "max_split_size_mb:100abc", "max_split_size_mb:-1",
        "max_split_size_mb:100,,large_segment_size_mb:32", "max_split_size_mb:", "max_split_size_mb",
        "large_segment_size_mb:32 max_split_size_mb:64", "unknown:1", "large_segment_size_mb:32,unknown:1",
        "roundup_power2_divisions:[64:8", "expandable_segments:true", "roundup_power2_divisions:3",
        "garbage_collection_threshold:1.0", "max_split_size_mb:99999999999999999999"}) {
    EXPECT_NE(refusal([&] { world.allocator.configure(text); }), "") << text;
    EXPECT_EQ(world.allocator.options(), before) << text;
  }
}

TEST(W8, ARefusalNamesKeyValueAndRule) {
  World world;
  const std::string message = refusal([&] { world.allocator.configure("large_segment_size_mb:10"); });
  EXPECT_CONTAINS(message, "large_segment_size_mb");
  EXPECT_CONTAINS(message, "10");
}

// ---- W10: the memory fraction among the options had no effect at run time

TEST(W10, TheMemoryFractionMayBeConfiguredAtRunTime) {
  World world(100 * kMiB);
  world.allocator.configure("per_process_memory_fraction:0.5");
  EXPECT_EQ(world.allocator.memory_fraction(), 0.5);
  EXPECT_THROW(world.allocate(60 * kMiB), OutOfMemory);
  world.allocator.configure("per_process_memory_fraction:1.0");
  world.allocate(60 * kMiB);
}

TEST(W10, OptionsThatDoNotNameTheFractionLeaveItAlone) {
  World world(100 * kMiB);
  world.allocator.set_memory_fraction(0.5);
  world.allocator.configure("max_split_size_mb:40");
  EXPECT_EQ(world.allocator.memory_fraction(), 0.5);
  EXPECT_THROW(world.allocate(60 * kMiB), OutOfMemory);
}

TEST(W10, TheFractionNamedAgainIsSetAgain) {
  World world(100 * kMiB, "per_process_memory_fraction:0.5");
  world.allocator.set_memory_fraction(1);
  world.allocator.configure("per_process_memory_fraction:0.5");
  EXPECT_EQ(world.allocator.memory_fraction(), 0.5);
}

// ---- W11: no figure of fragmentation

TEST(W11, FragmentationHasFigures) {
  World world;
  void* first = world.allocate(4 * kMiB);
  world.allocate(3 * kMiB);           // of a 20 MiB segment: 13 MiB stay free behind it
  world.allocate(15 * kMiB);          // 16 MiB, 1 MiB of it slack
  world.allocator.deallocate(first);  // 4 MiB more are free
  const Fragmentation figures = world.allocator.fragmentation();
  EXPECT_EQ(figures.requested_bytes, 18 * kMiB);
  EXPECT_EQ(figures.allocated_bytes, 19 * kMiB);
  EXPECT_EQ(figures.reserved_bytes, 36 * kMiB);
  EXPECT_EQ(figures.free_bytes, 17 * kMiB);
  EXPECT_EQ(figures.largest_free_bytes, 13 * kMiB);
  EXPECT_EQ(figures.free_blocks, 2u);
  EXPECT_EQ(figures.peak_requested_bytes, 22 * kMiB);
  EXPECT_EQ(figures.peak_reserved_bytes, 36 * kMiB);
  EXPECT_DOUBLE_EQ(figures.internal, 1 - 18.0 / 19);
  EXPECT_DOUBLE_EQ(figures.external, 1 - 13.0 / 17);
  EXPECT_DOUBLE_EQ(figures.reserved_ratio, 36.0 / 19);
  EXPECT_DOUBLE_EQ(figures.peak_ratio, 36.0 / 22);
  std::uint64_t blocks = 0;
  for (const std::uint64_t count : figures.free_block_histogram) blocks += count;
  EXPECT_EQ(blocks, 2u);
  EXPECT_EQ(figures.free_block_histogram[13], 1u);  // [4, 8) MiB
  EXPECT_EQ(figures.free_block_histogram[14], 1u);  // [8, 16) MiB
}

TEST(W11, FragmentationOfNothingIsZero) {
  World world;
  const Fragmentation figures = world.allocator.fragmentation();
  EXPECT_EQ(figures.internal, 0);
  EXPECT_EQ(figures.external, 0);
  EXPECT_EQ(figures.reserved_ratio, 0);
  EXPECT_EQ(figures.peak_ratio, 0);
  EXPECT_EQ(figures.free_blocks, 0u);
}

TEST(W11, FragmentationCountsWaitingMemoryAsInUse) {
  World world;
  const Stream other = world.device->new_stream();
  void* ptr = world.allocate(3 * kMiB);
  world.allocator.record_stream(ptr, other);
  world.launch(other);
  world.allocator.deallocate(ptr);
  const Fragmentation figures = world.allocator.fragmentation();
  EXPECT_EQ(figures.requested_bytes, 3 * kMiB);
  EXPECT_EQ(figures.allocated_bytes, 3 * kMiB);
  EXPECT_EQ(figures.free_bytes, 17 * kMiB);
}

}  // namespace
}  // namespace cachalot
