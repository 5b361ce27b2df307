// Allocations at aligned addresses: from the heap that serves all others, on each heap, with and without guard and caching.
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "tests/allocator/testing.h"

namespace cachalot {
namespace {

constexpr std::size_t kAlignments[] = {1, 256, 512, 1024, 4 * kKiB, 64 * kKiB, kMiB, 2 * kMiB};
const char* const kHeaps[] = {"heap:segments",
                              "heap:pages",
                              "heap:async",
                              "heap:managed",
                              "heap:segments,guard:True",
                              "heap:pages,guard:True",
                              "heap:segments,max_split_size_mb:20"};

void* allocate_aligned(CachingAllocator& allocator, std::size_t bytes, std::size_t alignment, Stream stream = nullptr) {
  return allocator.allocate(bytes, 0, stream, {.alignment = alignment});
}

TEST(AnAlignedAllocation, HasItsAlignmentOnEachHeap) {
  for (const char* heap : kHeaps) {
    World world(64 * kGiB, heap);
    std::vector<void*> live = {world.allocate(512), world.allocate(kMiB + 512)};
    for (const std::size_t alignment : kAlignments) {
      for (const std::size_t bytes : {std::size_t{1}, 5 * kKiB, kMiB, 3 * kMiB + 1, 12 * kMiB}) {
        live.push_back(allocate_aligned(world.allocator, bytes, alignment));
        EXPECT_EQ(address(live.back()) % alignment, 0U) << heap << ": " << bytes << " bytes at " << alignment;
        EXPECT_EQ(world.allocator.requested_size(live.back()), bytes) << heap;
        ASSERT_EQ(world.allocator.validate(), "") << heap;
      }
    }
    for (void* ptr : live) world.allocator.deallocate(ptr);
    world.allocator.empty_cache();
    EXPECT_EQ(world.reserved(), 0U) << heap;
  }
}

TEST(AnAlignedAllocation, LeavesWhatLiesBeforeAndBehindFree) {
  for (const char* heap : {"heap:segments", "heap:pages"}) {
    World world(64 * kGiB, heap);
    world.allocate(3 * kMiB - 512);
    void* const aligned = allocate_aligned(world.allocator, 4 * kMiB, 2 * kMiB);
    EXPECT_EQ(world.allocated(), 7 * kMiB - 512) << heap;
    EXPECT_EQ(world.allocator.allocated_size(aligned), 4 * kMiB) << heap;
    const Fragmentation figures = world.allocator.fragmentation(0);
    EXPECT_EQ(figures.free_bytes, world.reserved() - world.allocated()) << heap;
  }
}

TEST(AnAlignedAllocation, LiesInAFreeBlockThatJustHasTheRoom) {
  World world(64 * kGiB, "heap:segments");
  void* const first = allocate_aligned(world.allocator, 4 * kMiB, 2 * kMiB);
  world.allocate(2 * kMiB);
  const std::size_t held = world.reserved();
  for (int i = 0; i < 10; ++i) {  // the free block is as large as the request: there is no slack in it
    world.allocator.deallocate(i == 0 ? first : allocate_aligned(world.allocator, 4 * kMiB, 2 * kMiB));
  }
  EXPECT_EQ(allocate_aligned(world.allocator, 4 * kMiB, 2 * kMiB), first);
  EXPECT_EQ(world.reserved(), held);
}

// Holes of 1 KiB at addresses that are not multiples of 4 KiB: more than are looked at first.
struct Holes {
  explicit Holes(World& world) {
    std::vector<void*> blocks;
    for (int i = 0; i < 2048; ++i) blocks.push_back(world.allocate(kKiB));  // a segment of small blocks
    for (void* block : blocks) {
      const std::size_t offset = address(block) % (4 * kKiB);
      if (offset == kKiB) world.allocator.deallocate(block);
      if (offset == 0) aligned = block;
    }
    reserved = world.reserved();
  }
  void* aligned = nullptr;  // live, the last of those at a multiple of 4 KiB
  std::size_t reserved = 0;
};

TEST(AnAlignedAllocation, IsFoundBehindManyHolesThatAreNotAligned) {
  World world(64 * kGiB, "heap:segments");
  const Holes holes(world);
  world.allocator.deallocate(holes.aligned);  // merges with the hole behind it: 2 KiB, too little for any beginning
  EXPECT_EQ(allocate_aligned(world.allocator, kKiB, 4 * kKiB), holes.aligned);
  EXPECT_EQ(world.reserved(), holes.reserved);
}

TEST(AnAlignedAllocation, TakesAPartOfALargerBlockRatherThanLookAtEachHole) {
  World world(64 * kGiB, "heap:segments");
  const Holes holes(world);
  void* const large = world.allocate(64 * kKiB);  // of another segment
  world.allocator.deallocate(large);
  const std::size_t reserved = world.reserved();
  void* const ptr = allocate_aligned(world.allocator, kKiB, 4 * kKiB);
  EXPECT_EQ(address(ptr) % (4 * kKiB), 0U);
  EXPECT_EQ(offset_in_segment(world.allocator, ptr), 0U);
  EXPECT_EQ(world.allocator.base_allocation(ptr).base, large);
  EXPECT_EQ(world.reserved(), reserved);
}

TEST(AnAlignedAllocation, TakesNoMemoryInASteadyState) {
  for (const char* heap : {"heap:segments", "heap:pages"}) {
    World world(64 * kGiB, heap);
    std::size_t held = 0;
    for (int round = 0; round < 20; ++round) {
      std::vector<void*> live;
      for (const std::size_t alignment : kAlignments) {
        live.push_back(allocate_aligned(world.allocator, 3 * kMiB, alignment));
        live.push_back(world.allocate(700 * kKiB));
      }
      for (void* ptr : live) world.allocator.deallocate(ptr);
      if (round == 1) held = world.reserved();
      if (round > 1) {
        EXPECT_EQ(world.reserved(), held) << heap << ", round " << round;
      }
    }
  }
}

TEST(AnAlignedAllocation, MayLieInOneHandleAsWell) {
  World world(64 * kGiB, "heap:pages");
  world.allocate(3 * kMiB);
  for (int i = 0; i < 8; ++i) {
    void* const ptr = world.allocator.allocate(3 * kMiB, 0, nullptr, {.contiguous = true, .alignment = kMiB});
    EXPECT_EQ(address(ptr) % kMiB, 0U);
    EXPECT_EQ(world.allocator.handle_count(ptr), 1U);
    ASSERT_EQ(world.allocator.validate(), "");
    if (i % 2 == 0) world.allocator.deallocate(ptr);
  }
}

TEST(AnAlignedAllocation, LiesInThePoolOfItsThread) {
  World world(64 * kGiB, "heap:segments");
  const PoolId pool{0, 7};
  const InPool redirected(world.allocator, pool);
  void* const ptr = allocate_aligned(world.allocator, 5 * kMiB, 2 * kMiB);
  EXPECT_EQ(address(ptr) % (2 * kMiB), 0U);
  EXPECT_EQ(world.allocator.memory_allocated(), 5 * kMiB);
  world.allocator.deallocate(ptr);
}

TEST(AnAlignedAllocation, ComesFromTheDeviceWhileCachingIsOff) {
  World world(kGiB);
  world.allocator.set_caching_enabled(false);
  void* const ptr = allocate_aligned(world.allocator, 5 * kMiB, 2 * kMiB);
  EXPECT_EQ(address(ptr) % (2 * kMiB), 0U);
  world.allocator.deallocate(ptr);
  EXPECT_EQ(world.device->memory_info().free_bytes, kGiB);
  EXPECT_THROW(world.allocator.deallocate(ptr), InvalidArgument);
}

TEST(AnAlignedAllocation, CountsAsItsBytesInStatisticsAndHistory) {
  World world;
  world.allocator.record_history({.max_entries = 100});
  world.allocate(3 * kMiB - 512);
  void* const ptr = allocate_aligned(world.allocator, 4 * kMiB, 2 * kMiB);
  const DeviceStats stats = world.allocator.memory_stats();
  EXPECT_EQ(stats.allocation.all.allocated, 2);
  EXPECT_EQ(stats.requested_bytes.all.current, static_cast<std::int64_t>(7 * kMiB - 512));
  EXPECT_EQ(stats.inactive_split.all.current, 2) << "what lies before and what lies behind";
  const Change change = world.allocator.snapshot().device_traces[0].back();
  EXPECT_EQ(change.action, Change::Action::alloc);
  EXPECT_EQ(change.address, address(ptr));
  EXPECT_EQ(change.bytes, 4 * kMiB);
}

TEST(AnAlignedAllocation, IsRefusedForAnAlignmentThatIsNoneOrTooLarge) {
  for (const char* heap : {"heap:segments", "guard:True"}) {
    World world(64 * kGiB, heap);
    for (const std::size_t alignment : {std::size_t{0}, std::size_t{3}, std::size_t{768}, 4 * kMiB}) {
      EXPECT_CONTAINS(refusal([&] { allocate_aligned(world.allocator, 512, alignment); }),
                      "an alignment of " + std::to_string(alignment) + " bytes: it must be a power of two");
      EXPECT_THROW(allocate_aligned(world.allocator, 0, alignment), InvalidArgument);
    }
    EXPECT_EQ(allocate_aligned(world.allocator, 0, 2 * kMiB), nullptr);
    EXPECT_EQ(world.reserved(), 0U);
    EXPECT_THROW(allocate_aligned(world.allocator, kMaxRequestBytes - 1, 2 * kMiB), OutOfMemory);
    EXPECT_THROW(allocate_aligned(world.allocator, SIZE_MAX, 2 * kMiB), OutOfMemory);
  }
}

TEST(AnAlignedAllocation, ThatFindsNoMemoryNamesItsBytes) {
  World world(60 * kMiB, "heap:segments");
  try {
    allocate_aligned(world.allocator, 61 * kMiB, 2 * kMiB);
    FAIL() << "there is not as much memory";
  } catch (const OutOfMemory& error) {
    EXPECT_EQ(error.requested_bytes(), 61 * kMiB);
  }
  EXPECT_NE(allocate_aligned(world.allocator, 40 * kMiB, 2 * kMiB), nullptr);
}

// Random programs of aligned and other allocations: no two overlap, and the books balance after each step.
TEST(AlignedAllocations, NeverOverlapOthers) {
  for (const char* heap : {"heap:segments", "heap:pages", "heap:pages,guard:True"}) {
    World world(64 * kGiB, heap);
    std::mt19937 random(23);
    std::map<Address, std::size_t> live;
    for (int step = 0; step < 3000; ++step) {
      if (live.size() > 40 || (random() % 3 == 0 && !live.empty())) {
        const auto victim = std::next(live.begin(), static_cast<std::ptrdiff_t>(random() % live.size()));
        world.allocator.deallocate(reinterpret_cast<void*>(victim->first));
        live.erase(victim);
      } else {
        const std::size_t alignment = std::size_t{1} << random() % 22;
        const std::size_t bytes = 1 + random() % (std::size_t{1} << (9 + random() % 15));
        const Address begin = address(allocate_aligned(world.allocator, bytes, alignment));
        ASSERT_EQ(begin % alignment, 0U) << heap << ", step " << step;
        const auto after = live.lower_bound(begin);
        ASSERT_TRUE(after == live.end() || begin + bytes <= after->first) << heap << ", step " << step;
        ASSERT_TRUE(after == live.begin() || std::prev(after)->second <= begin) << heap << ", step " << step;
        live[begin] = begin + bytes;
      }
      if (step % 20 != 0) continue;
      ASSERT_EQ(world.allocator.validate(), "") << heap << ", step " << step;
    }
  }
}

}  // namespace
}  // namespace cachalot
