// Functions that PyTorch 2.12 to 2.15 added: refusals, allocations at an address, annotations, figures of private pools,
// captures that are told apart from pools. tests/pytorch/test_newer_functions.py compares the same with PyTorch.
#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "tests/allocator/testing.h"

namespace cachalot {
namespace {

constexpr PoolId kAPool{0, 7};

char* as_bytes(void* ptr) { return static_cast<char*>(ptr); }

// --- throw_on_cudamalloc_oom ------------------------------------------------------------------------------------------

TEST(ARefusal, GivesNothingBackAndTellsItsObservers) {
  for (const char* heap : {"heap:segments", "heap:pages"}) {
    World world(60 * kMiB, std::string(heap) + ",throw_on_cudamalloc_oom:True");
    std::vector<RefusalReport> told;
    world.allocator.add_refusal_observer([&](const RefusalReport& report) { told.push_back(report); });
    world.allocate(30 * kMiB);
    EXPECT_THROW(world.allocate(32 * kMiB), OutOfMemory) << heap;
    EXPECT_EQ(world.allocator.added_stats().num_oom_rejections, 1) << heap;
    EXPECT_EQ(world.allocator.memory_stats().num_ooms, 0) << heap;
    ASSERT_EQ(told.size(), 1U) << heap;
    EXPECT_EQ(told[0].segment_bytes, 32 * kMiB);
    EXPECT_EQ(told[0].held_bytes, 30 * kMiB);
    EXPECT_EQ(told[0].total_bytes, 60 * kMiB);
    EXPECT_EQ(told[0].requested_bytes, 32 * kMiB);
    world.allocate(30 * kMiB);  // just fits
    world.allocator.reset_accumulated_stats();
    EXPECT_EQ(world.allocator.added_stats().num_oom_rejections, 0) << heap;
  }
}

TEST(ARefusal, LeavesTheCacheOfOtherStreams) {
  World world(60 * kMiB, "throw_on_cudamalloc_oom:True");
  const Stream other = world.device->new_stream();
  world.allocator.deallocate(world.allocate(40 * kMiB));
  EXPECT_THROW(world.allocate(40 * kMiB, other), OutOfMemory);
  EXPECT_EQ(world.reserved(), 40 * kMiB);
  world.allocator.configure("throw_on_cudamalloc_oom:False");
  world.allocate(40 * kMiB, other);
}

TEST(ARefusal, IsNotMadeByALimitOfTheProgram) {
  World world(60 * kMiB, "throw_on_cudamalloc_oom:True");
  world.allocator.set_memory_fraction(0.5);
  EXPECT_THROW(world.allocate(40 * kMiB), OutOfMemory);
  EXPECT_EQ(world.allocator.added_stats().num_oom_rejections, 0);
  EXPECT_EQ(world.allocator.memory_stats().num_ooms, 1);
}

// --- allocations at an address ----------------------------------------------------------------------------------------

TEST(AnAllocationAtAnAddress, LiesThereOnEachHeap) {
  for (const char* heap : {"heap:segments", "heap:pages"}) {
    World world(64 * kGiB, heap);
    char* const first = as_bytes(world.allocate(6 * kMiB));
    world.allocate(2 * kMiB);
    world.allocator.deallocate(first);
    EXPECT_EQ(world.allocator.allocate_at(2 * kMiB, 0, nullptr, first + kMiB), first + kMiB) << heap;
    EXPECT_EQ(world.allocated(), 4 * kMiB) << heap;
    const DeviceStats stats = world.allocator.memory_stats();
    EXPECT_EQ(stats.allocation.all.allocated, 4) << heap;  // with the memory before it
    EXPECT_EQ(world.allocator.allocate_at(0, 0, nullptr, first), nullptr) << heap;
  }
}

TEST(AnAllocationAtAnAddress, IsRefusedWhereTheMemoryIsNotFree) {
  World world;
  char* const live = as_bytes(world.allocate(6 * kMiB));
  const auto refused = [&](std::size_t bytes, void* address, Stream stream = nullptr) {
    EXPECT_THROW(world.allocator.allocate_at(bytes, 0, stream, address), InvalidArgument) << bytes << " at " << address;
  };
  refused(2 * kMiB, live);
  refused(2 * kMiB, live + 19 * kMiB);  // too little is left of the segment
  refused(512, live + 1);
  refused(kMiB, live + 8 * kMiB);  // a small request has another pool
  refused(2 * kMiB, live + 8 * kMiB, world.device->new_stream());
  refused(2 * kMiB, nullptr);
  EXPECT_EQ(world.allocated(), 6 * kMiB);
  EXPECT_EQ(world.allocator.allocate_at(2 * kMiB, 0, nullptr, live + 8 * kMiB), live + 8 * kMiB);
}

TEST(AnAllocationAtAnAddress, IsMarkedInHistory) {
  World world;
  char* const first = as_bytes(world.allocate(6 * kMiB));
  world.allocate(2 * kMiB);
  world.allocator.deallocate(first);
  world.allocator.record_history({.max_entries = 100});
  world.allocator.allocate_at(2 * kMiB, 0, nullptr, first + kMiB);
  world.allocate(2 * kMiB);
  std::vector<std::string> story;
  const Snapshot snapshot = world.allocator.snapshot();
  for (const Change& change : snapshot.device_traces[0])
    story.push_back(std::string(to_string(change.action)) + (change.is_placed ? ", placed" : ""));
  EXPECT_EQ(story, (std::vector<std::string>{"alloc, placed", "alloc, placed", "free_requested, placed",
                                             "free_completed, placed", "alloc"}));
}

// --- annotations ------------------------------------------------------------------------------------------------------

TEST(AnAnnotation, IsAChangeOfALiveAllocation) {
  World world;
  world.allocator.record_history({.max_entries = 100});
  void* const ptr = world.allocate(3 * kMiB - 7);
  const Context note = std::make_shared<int>(3);
  world.allocator.annotate(ptr, note);
  const Change change = world.allocator.snapshot().device_traces[0].back();
  EXPECT_EQ(change.action, Change::Action::annotate);
  EXPECT_EQ(change.address, reinterpret_cast<Address>(ptr));
  EXPECT_EQ(change.bytes, 3 * kMiB - 7);
  EXPECT_EQ(change.annotation, note);
  world.allocator.deallocate(ptr);
  EXPECT_THROW(world.allocator.annotate(ptr, note), InvalidArgument);
}

TEST(AContext, IsThatOfALiveAllocation) {
  World world;
  const Context here = std::make_shared<int>(1);
  HistoryOptions history{.max_entries = 100, .contexts = HistoryOptions::Contexts::state};
  history.recorder = [&] { return here; };
  void* const before = world.allocate(512);
  world.allocator.record_history(history);
  void* const ptr = world.allocate(512);
  EXPECT_EQ(world.allocator.context_of(ptr), here);
  EXPECT_EQ(world.allocator.context_of(before), nullptr);
  EXPECT_EQ(world.allocator.context_of(as_bytes(ptr) + 1), nullptr);
  EXPECT_EQ(world.allocator.context_of(nullptr), nullptr);
}

// --- private pools ----------------------------------------------------------------------------------------------------

const auto kEveryStream = [](Stream) { return true; };

TEST(FiguresOfPools, AreWhatEachHolds) {
  for (const char* heap : {"heap:segments", "heap:pages"}) {
    World world(64 * kGiB, heap);
    world.allocator.begin_allocate_to_pool(0, kAPool, kEveryStream, RedirectFor::requests);
    void* const ptr = world.allocate(30 * kMiB);
    world.allocator.end_allocate_to_pool(0, kAPool);
    world.allocate(30 * kMiB);
    const auto of_pool = [&] { return world.allocator.added_stats().reserved_bytes_by_private_pools.at(kAPool); };
    constexpr std::int64_t kHeld = 30 * kMiB;
    EXPECT_EQ(of_pool().all, (Stat{kHeld, kHeld, kHeld, 0})) << heap;
    EXPECT_EQ(of_pool().large_pool, of_pool().all) << heap;
    world.allocator.deallocate(ptr);
    world.allocator.release_pool(0, kAPool);
    world.allocator.empty_cache();
    EXPECT_EQ(of_pool().all, (Stat{0, kHeld, kHeld, kHeld})) << heap;
    world.allocator.reset_peak_stats();
    world.allocator.reset_accumulated_stats();
    EXPECT_EQ(of_pool(), StatArray{}) << heap;
    EXPECT_EQ(world.allocator.added_stats().reserved_bytes_by_private_pools.size(), 1U) << heap;
  }
}

TEST(ARedirectionOfRequests, LeavesTheCacheToEmptyCache) {
  for (const auto& [reason, left] : {std::pair{RedirectFor::thread, 40 * kMiB}, {RedirectFor::requests, 0 * kMiB}}) {
    World world;
    world.allocator.deallocate(world.allocate(40 * kMiB));
    world.allocator.begin_allocate_to_pool(0, kAPool, kEveryStream, reason);
    world.allocator.empty_cache();
    EXPECT_EQ(world.reserved(), left);
    world.allocator.end_allocate_to_pool(0, kAPool);
  }
}

TEST(ACapture, KeepsTheCacheUntilItEnds) {
  World world;
  world.allocator.deallocate(world.allocate(40 * kMiB));
  world.allocator.begin_capture(0);
  world.allocator.begin_capture(0);
  world.allocator.end_capture(0);
  world.allocator.empty_cache();
  EXPECT_EQ(world.reserved(), 40 * kMiB);
  world.allocator.end_capture(0);
  world.allocator.end_capture(0);  // there is none
  world.allocator.empty_cache();
  EXPECT_EQ(world.reserved(), 0U);
}

}  // namespace
}  // namespace cachalot
