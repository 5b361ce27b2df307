// The result of a request: its size, its place, the split and merged blocks, and the effect of every option.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <random>
#include <vector>

#include "tests/allocator/testing.h"

namespace cachalot {
namespace {

// ---- Sizes

struct SizeCase {
  std::size_t requested, allocated, reserved;
};

class SizeTable : public testing::TestWithParam<SizeCase> {};

TEST_P(SizeTable, IsPyTorchs) {
  World world;
  void* ptr = world.allocate(GetParam().requested);
  EXPECT_NE(ptr, nullptr);
  EXPECT_EQ(address(ptr) % 512, 0u);
  EXPECT_EQ(world.allocated(), GetParam().allocated);
  EXPECT_EQ(world.reserved(), GetParam().reserved);
  const DeviceStats stats = world.allocator.memory_stats();
  EXPECT_EQ(stats.requested_bytes.all.current, static_cast<std::int64_t>(GetParam().requested));
  EXPECT_EQ(world.count(DeviceCall::malloc), 1u);
  world.allocator.deallocate(ptr);
  EXPECT_EQ(world.allocated(), 0u);
  EXPECT_EQ(world.reserved(), GetParam().reserved);
}

// Executed with PyTorch 2.11.
INSTANTIATE_TEST_SUITE_P(
    Boundaries, SizeTable,
    testing::Values(SizeCase{1, 512, 2 * kMiB}, SizeCase{511, 512, 2 * kMiB}, SizeCase{512, 512, 2 * kMiB},
                    SizeCase{513, 1024, 2 * kMiB}, SizeCase{kMiB - 1, kMiB, 2 * kMiB}, SizeCase{kMiB, kMiB, 2 * kMiB},
                    SizeCase{kMiB + 1, 1049088, 20971520}, SizeCase{2 * kMiB, 2 * kMiB, 20 * kMiB},
                    SizeCase{5 * kMiB, 5 * kMiB, 20 * kMiB}, SizeCase{10 * kMiB - 512, 10 * kMiB - 512, 20 * kMiB},
                    SizeCase{10 * kMiB - 1, 10 * kMiB, 10 * kMiB}, SizeCase{10 * kMiB, 10 * kMiB, 10 * kMiB},
                    SizeCase{10 * kMiB + 1, 10486272, 12582912}, SizeCase{11 * kMiB, 12582912, 12582912},
                    SizeCase{19 * kMiB, 20 * kMiB, 20 * kMiB}, SizeCase{20 * kMiB, 20 * kMiB, 20 * kMiB},
                    SizeCase{21 * kMiB + 1, 23068672, 23068672}));

TEST(AnEmptyRequest, IsANullPointerAndChangesNothing) {
  World world;
  const DeviceStats before = world.allocator.memory_stats();
  EXPECT_EQ(world.allocate(0), nullptr);
  world.allocator.deallocate(nullptr);
  EXPECT_EQ(world.allocator.memory_stats(), before);
  EXPECT_EQ(world.count(DeviceCall::malloc), 0u);
}

TEST(SmallAndLargeBlocks, DoNotShareSegments) {
  World world;
  void* large = world.allocate(2 * kMiB);  // leaves 18 MiB free in its segment
  void* small = world.allocate(kMiB);
  EXPECT_EQ(world.segments(), 2);
  world.allocator.deallocate(small);
  void* another = world.allocate(kMiB + 1);
  EXPECT_EQ(another, after(large, 2 * kMiB));
  EXPECT_EQ(world.segments(), 2);
}

TEST(TheFirstBlock, LiesAtTheSegmentsStart) {
  World world;
  EXPECT_EQ(offset_in_segment(world.allocator, world.allocate(1000)), 0u);
  EXPECT_EQ(offset_in_segment(world.allocator, world.allocate(1000)), 1024u);
  EXPECT_EQ(offset_in_segment(world.allocator, world.allocate(3 * kMiB)), 0u);
}

// ---- Best fit

// Blocks of these sizes, then frees every second one: separated holes of the sizes in between.
std::vector<void*> holes(World& world, const std::vector<std::size_t>& sizes) {
  std::vector<void*> result;
  for (const std::size_t size : sizes) {
    result.push_back(world.allocate(size));
    world.allocate(512);  // keeps the neighbours apart
  }
  for (void* ptr : result) world.allocator.deallocate(ptr);
  return result;
}

TEST(BestFit, TakesTheSmallestHoleThatIsLargeEnough) {
  World world;
  const auto hole = holes(world, {8192, 2048, 4096, 1024});
  EXPECT_EQ(world.allocate(1500), hole[1]);
  EXPECT_EQ(world.allocate(2500), hole[2]);
  EXPECT_EQ(world.allocate(1024), hole[3]);
  EXPECT_EQ(world.allocate(4000), hole[0]);
}

TEST(BestFit, PrefersTheLowestAddressAmongEquals) {
  World world;
  const auto hole = holes(world, {2048, 2048, 2048});
  EXPECT_EQ(world.allocate(2048), hole[0]);
  EXPECT_EQ(world.allocate(2048), hole[1]);
  world.allocator.deallocate(hole[0]);
  EXPECT_EQ(world.allocate(2048), hole[0]);
  EXPECT_EQ(world.allocate(2048), hole[2]);
}

TEST(BestFit, PrefersTheLowerSegmentWhateverWasFreedLast) {
  World world;
  void* first = world.allocate(30 * kMiB);
  void* second = world.allocate(30 * kMiB);
  ASSERT_LT(first, second);
  world.allocator.deallocate(first);
  world.allocator.deallocate(second);
  EXPECT_EQ(world.allocate(30 * kMiB), first);
  EXPECT_EQ(world.allocate(30 * kMiB), second);
}

TEST(BestFit, LooksAcrossSegments) {
  World world;
  void* wide = world.allocate(40 * kMiB);
  void* narrow = world.allocate(30 * kMiB);
  world.allocator.deallocate(wide);
  world.allocator.deallocate(narrow);
  EXPECT_EQ(world.allocate(29 * kMiB), narrow);
  EXPECT_EQ(world.segments(), 2);
}

TEST(BestFit, DistinguishesSizesThatDifferByOneUnit) {
  World world;
  const auto hole = holes(world, {300 * kKiB + 1024, 300 * kKiB + 512, 300 * kKiB + 1536});
  EXPECT_EQ(world.allocate(300 * kKiB + 512), hole[1]);
  EXPECT_EQ(world.allocate(300 * kKiB + 513), hole[0]);
  EXPECT_EQ(world.allocate(300 * kKiB + 1025), hole[2]);
}

TEST(AFreeBlock, ServesOnlyTheStreamOfItsSegment) {
  World world;
  const Stream other = world.device->new_stream();
  void* ptr = world.allocate(4096);
  world.allocator.deallocate(ptr);
  void* elsewhere = world.allocate(4096, other);
  EXPECT_NE(elsewhere, ptr);
  EXPECT_EQ(world.segments(), 2);
  world.allocator.deallocate(elsewhere);
  EXPECT_EQ(world.allocate(4096, other), elsewhere);
  EXPECT_EQ(world.allocate(4096), ptr);
}

// ---- Split and merge

TEST(ASplit, HandsOutTheLowPart) {
  World world;
  void* whole = world.allocate(2 * kMiB);
  EXPECT_EQ(picture(world.allocator), "live 2097152 | free 18874368\n");
  world.allocator.deallocate(whole);
  EXPECT_EQ(world.allocate(kMiB + 1), whole);
  EXPECT_EQ(picture(world.allocator), "live 1049088 | free 19922432\n");
}

TEST(ASmallBlock, IsSplitWhen512BytesRemain) {
  World world;
  world.allocate(2 * kMiB - 512 - kMiB);
  world.allocate(kMiB);
  EXPECT_EQ(picture(world.allocator), "live 1048064 | live 1048576 | free 512\n");
  world.allocate(1);
  EXPECT_EQ(picture(world.allocator), "live 1048064 | live 1048576 | live 512\n");
}

TEST(ALargeBlock, IsSplitWhenMoreThanOneMebibyteRemains) {
  World world;
  world.allocator.deallocate(world.allocate(20 * kMiB));
  void* exactly = world.allocate(19 * kMiB);
  EXPECT_EQ(picture(world.allocator), "live 20971520\n");
  world.allocator.deallocate(exactly);
  world.allocate(19 * kMiB - 512);
  EXPECT_EQ(picture(world.allocator), "live 19922432 | free 1049088\n");
}

TEST(AFree, MergesWithFreeNeighboursInWhateverOrder) {
  std::array<int, 3> order = {0, 1, 2};
  do {
    World world;
    const std::array<void*, 3> ptr = {world.allocate(1024), world.allocate(2048), world.allocate(4096)};
    void* last = world.allocate(2 * kMiB - 1024 - 2048 - 4096 - kMiB + 512);
    world.allocate(kMiB - 512);
    for (const int which : order) world.allocator.deallocate(ptr[static_cast<std::size_t>(which)]);
    EXPECT_EQ(picture(world.allocator), "free 7168 | live 1041920 | live 1048064\n");
    world.allocator.deallocate(last);
    EXPECT_EQ(picture(world.allocator), "free 1049088 | live 1048064\n");
    EXPECT_EQ(world.allocator.validate(), "");
  } while (std::next_permutation(order.begin(), order.end()));
}

TEST(AFree, NeverMergesAcrossSegments) {
  World world;
  void* first = world.allocate(10 * kMiB);
  void* second = world.allocate(10 * kMiB);
  world.allocator.deallocate(first);
  world.allocator.deallocate(second);
  EXPECT_EQ(picture(world.allocator), "free 10485760\nfree 10485760\n");
  world.allocate(20 * kMiB);
  EXPECT_EQ(world.segments(), 3);
}

TEST(AMergedBlock, KeepsTheLowerAddress) {
  World world;
  void* low = world.allocate(4096);
  void* high = world.allocate(4096);
  world.allocate(512);
  world.allocator.deallocate(high);
  world.allocator.deallocate(low);
  EXPECT_EQ(world.allocate(8192), low);
}

TEST(AllocatedBytes, CountTheSlackOfAnUnsplitBlock) {
  World world;
  world.allocate(11 * kMiB);
  EXPECT_EQ(world.allocated(), 12 * kMiB);
  EXPECT_EQ(world.allocator.memory_stats().requested_bytes.all.current, static_cast<std::int64_t>(11 * kMiB));
}

// ---- Options

TEST(LargeSegmentSize, IsWhatRequestsBelowTenMebibytesGrowBy) {
  World world(64 * kGiB, "large_segment_size_mb:32");
  world.allocate(5 * kMiB);
  EXPECT_EQ(world.reserved(), 32 * kMiB);
  world.allocate(10 * kMiB);
  EXPECT_EQ(world.reserved(), 32 * kMiB);  // from the first segment's rest
  world.allocate(20 * kMiB);
  EXPECT_EQ(world.reserved(), 52 * kMiB);
}

TEST(MaxSplitSize, KeepsLargerBlocksWhole) {
  World world(64 * kGiB, "max_split_size_mb:32");
  world.allocator.deallocate(world.allocate(40 * kMiB));
  void* ptr = world.allocate(34 * kMiB);
  EXPECT_EQ(picture(world.allocator), "live 41943040\n");
  world.allocator.deallocate(ptr);
}

TEST(MaxSplitSize, KeepsLargerBlocksFromSmallerRequests) {
  World world(64 * kGiB, "max_split_size_mb:32");
  world.allocator.deallocate(world.allocate(32 * kMiB));
  world.allocate(31 * kMiB);
  EXPECT_EQ(picture(world.allocator), "free 33554432\nlive 33554432\n");  // a new segment; 1 MiB of it is slack
}

TEST(MaxSplitSize, LeavesSmallerBlocksAsTheyWere) {
  World world(64 * kGiB, "max_split_size_mb:32");
  world.allocator.deallocate(world.allocate(30 * kMiB));
  world.allocate(12 * kMiB);
  EXPECT_EQ(picture(world.allocator), "live 12582912 | free 18874368\n");
}

TEST(AnOversizeRequest, TakesNoBlockThatIsLargerByTheNonSplitRounding) {
  World world(64 * kGiB, "max_split_size_mb:32");
  world.allocator.deallocate(world.allocate(54 * kMiB));
  void* ptr = world.allocate(34 * kMiB);  // 54 >= 34 + 20
  EXPECT_EQ(world.segments(), 2);
  world.allocator.deallocate(ptr);
  world.allocator.empty_cache();
  world.allocator.deallocate(world.allocate(54 * kMiB));
  world.allocate(34 * kMiB + 1);
  EXPECT_EQ(world.segments(), 1);
}

TEST(MaxNonSplitRounding, WidensWhatAnOversizeRequestTakes) {
  World world(64 * kGiB, "max_split_size_mb:32,max_non_split_rounding_mb:30");
  world.allocator.deallocate(world.allocate(62 * kMiB));
  world.allocate(34 * kMiB);
  EXPECT_EQ(world.segments(), 1);
  EXPECT_EQ(world.allocated(), 62 * kMiB);
}

TEST(AnOversizeMiss, DoesNotTryTheNextBlock) {
  World world(64 * kGiB, "max_split_size_mb:32");
  void* narrow = world.allocate(20 * kMiB);
  void* wide = world.allocate(40 * kMiB);
  world.allocator.deallocate(narrow);
  world.allocator.deallocate(wide);
  world.allocate(25 * kMiB);  // its best fit is oversize: refused, though nothing else is asked either
  EXPECT_EQ(world.segments(), 3);
}

TEST(OversizeFigures, CountBlocksAndSegmentsOfMaxSplitSize) {
  World world(64 * kGiB, "max_split_size_mb:32");
  void* below = world.allocate(30 * kMiB);
  void* at = world.allocate(32 * kMiB);
  DeviceStats stats = world.allocator.memory_stats();
  EXPECT_EQ(stats.oversize_allocations, (Stat{1, 1, 1, 0}));
  EXPECT_EQ(stats.oversize_segments, (Stat{1, 1, 1, 0}));
  world.allocator.deallocate(at);
  world.allocator.deallocate(below);
  world.allocator.empty_cache();
  stats = world.allocator.memory_stats();
  EXPECT_EQ(stats.oversize_allocations, (Stat{0, 1, 1, 1}));
  EXPECT_EQ(stats.oversize_segments, (Stat{0, 1, 1, 1}));
  EXPECT_EQ(stats.max_split_size, static_cast<std::int64_t>(32 * kMiB));
}

TEST(AnUnlimitedMaxSplitSize, IsMinusOne) {
  World world;
  EXPECT_EQ(world.allocator.memory_stats().max_split_size, -1);
}

std::size_t allocated_for(const char* options, std::size_t bytes) {
  World world(64 * kGiB, options);
  world.allocator.deallocate(world.allocate(2 * bytes + 4 * kMiB));  // room to split from
  void* ptr = world.allocate(bytes);
  EXPECT_EQ(world.allocator.requested_size(ptr), bytes);
  return world.allocated();
}

TEST(RoundupPower2Divisions, RoundsToStepsBetweenPowersOfTwo) {
  // Executed with PyTorch 2.11.
  const char* four = "roundup_power2_divisions:4";
  EXPECT_EQ(allocated_for(four, 600), 1024u);  // not above 512 * 4: plain rounding
  EXPECT_EQ(allocated_for(four, 2048), 2048u);
  EXPECT_EQ(allocated_for(four, 3000), 3072u);
  EXPECT_EQ(allocated_for(four, 5000), 5120u);
  EXPECT_EQ(allocated_for(four, kMiB + 1), kMiB + kMiB / 4);
  EXPECT_EQ(allocated_for(four, 84 * kMiB), 96 * kMiB);
  EXPECT_EQ(allocated_for(four, 64 * kMiB), 64 * kMiB);
  EXPECT_EQ(allocated_for(four, 96 * kMiB), 96 * kMiB);
}

TEST(RoundupPower2Divisions, OfAListFillsBelowTheFirstAndAfterTheLastInterval) {
  const char* list = "roundup_power2_divisions:[64:8,256:4,>:2]";
  EXPECT_EQ(allocated_for(list, 5000), 5120u);              // slot 0, as the first: steps of 512
  EXPECT_EQ(allocated_for(list, 9 * kMiB + 1), 10 * kMiB);  // of 1 MiB
  EXPECT_EQ(allocated_for(list, 65 * kMiB), 72 * kMiB);     // of 8 MiB
  EXPECT_EQ(allocated_for(list, 129 * kMiB), 129 * kMiB);   // between the entries: not set
  EXPECT_EQ(allocated_for(list, 257 * kMiB), 320 * kMiB);   // of 64 MiB
  EXPECT_EQ(allocated_for(list, 513 * kMiB), 768 * kMiB);   // of 256 MiB
}

TEST(RoundupPower2Divisions, CanMakeASmallRequestALargeOne) {
  World world(64 * kGiB, "roundup_power2_divisions:2");
  world.allocate(800 * kKiB);
  EXPECT_EQ(world.allocated(), kMiB);
  EXPECT_EQ(world.reserved(), 2 * kMiB);
}

TEST(Configure, ChangesNothingWhenAnyPartIsWrong) {
  World world(64 * kGiB, "max_split_size_mb:64,roundup_power2_divisions:4");
  const Options before = world.allocator.options();
  EXPECT_CONTAINS(refusal([&] { world.allocator.configure("large_segment_size_mb:32,max_split_size_mb:2"); }),
                  "max_split_size_mb");
  EXPECT_EQ(world.allocator.options(), before);
  world.allocate(3000);
  EXPECT_EQ(world.allocated(), 3072u);
  world.allocate(5 * kMiB);
  EXPECT_EQ(world.reserved(), 22 * kMiB);
}

TEST(Configure, ResetsWhatPyTorchResets) {
  World world(64 * kGiB,
              "large_segment_size_mb:32,max_split_size_mb:64,roundup_power2_divisions:4,"
              "garbage_collection_threshold:0.5,max_non_split_rounding_mb:50");
  world.allocator.configure("");
  const Options options = world.allocator.options();
  EXPECT_EQ(options.max_split_size, Options::kUnlimited);
  EXPECT_EQ(options.roundup_power2_divisions, Options{}.roundup_power2_divisions);
  EXPECT_EQ(options.garbage_collection_threshold, 0);
  EXPECT_EQ(options.max_non_split_rounding, 32 * kMiB);
  EXPECT_EQ(options.large_segment_size, 32 * kMiB);
}

TEST(Configure, TakesOptionsParsedElsewhereWhole) {
  World world(64 * kGiB, "max_split_size_mb:64,per_process_memory_fraction:0.5");
  world.allocator.set_memory_fraction(0.25);
  Options options = world.allocator.options();
  options.max_split_size = 32 * kMiB;
  world.allocator.configure(options);
  EXPECT_EQ(world.allocator.options(), options);
  EXPECT_EQ(world.allocator.memory_fraction(), 0.25);  // the options' fraction is as it was
  options.per_process_memory_fraction = 1;
  world.allocator.configure(options);
  EXPECT_EQ(world.allocator.memory_fraction(), 1);
  options.heap = HeapKind::pages;
  EXPECT_CONTAINS(refusal([&] { world.allocator.configure(options); }), "heap:pages");
}

TEST(Configure, OptionsThatAreRefusedChangeNothing) {
  World world;
  const Options before = world.allocator.options();
  Options options = before;
  options.max_split_size = 64 * kMiB;
  options.per_process_memory_fraction = 2;
  for (int i = 0; i < 2; ++i) EXPECT_THROW(world.allocator.configure(options), InvalidArgument);
  EXPECT_EQ(world.allocator.options().max_split_size, before.max_split_size);
  EXPECT_EQ(world.allocator.options().per_process_memory_fraction, 1);
  EXPECT_EQ(world.allocator.memory_fraction(), 1);
}

TEST(Configure, TakesEffectAtTheNextRequest) {
  World world;
  world.allocator.deallocate(world.allocate(40 * kMiB));
  world.allocator.configure("max_split_size_mb:32");
  void* whole = world.allocate(33 * kMiB);
  EXPECT_EQ(world.allocated(), 40 * kMiB);
  world.allocator.deallocate(whole);
  world.allocator.configure("");
  world.allocate(33 * kMiB);
  EXPECT_EQ(world.allocated(), 33 * kMiB);
}

// ---- Memory fraction

TEST(AMemoryFraction, LimitsWhatIsReserved) {
  World world(100 * kMiB);
  world.allocator.set_memory_fraction(0.5);
  void* ptr = world.allocate(30 * kMiB);
  EXPECT_THROW(world.allocate(22 * kMiB), OutOfMemory);
  EXPECT_EQ(world.count(DeviceCall::malloc), 1u);  // the device was not asked
  world.allocate(20 * kMiB);
  EXPECT_EQ(world.reserved(), 50 * kMiB);
  world.allocator.set_memory_fraction(1);
  world.allocate(50 * kMiB);
  world.allocator.deallocate(ptr);
}

TEST(AMemoryFraction, IsRoundedDownToBytes) {
  World world(100 * kMiB + 1);
  world.allocator.set_memory_fraction(0.5);  // 50 MiB and a half byte
  world.allocate(50 * kMiB);
  EXPECT_EQ(world.reserved(), 50 * kMiB);
}

TEST(AMemoryFraction, OfZeroAllowsNothing) {
  World world(100 * kMiB);
  world.allocator.set_memory_fraction(0);
  EXPECT_THROW(world.allocate(1), OutOfMemory);
  EXPECT_EQ(world.allocator.memory_fraction(), 0);
}

TEST(AMemoryFraction, LeavesWhatIsCachedUsable) {
  World world(100 * kMiB);
  void* ptr = world.allocate(60 * kMiB);
  world.allocator.deallocate(ptr);
  world.allocator.set_memory_fraction(0.1);
  EXPECT_EQ(world.allocate(60 * kMiB), ptr);
}

TEST(AMemoryFraction, IsReturnedExactlyAsSet) {
  World world;
  EXPECT_EQ(world.allocator.memory_fraction(), 1);
  std::mt19937_64 random(7);
  for (int i = 0; i < 100; ++i) {
    const double fraction = std::uniform_real_distribution<double>(0, 1)(random);
    world.allocator.set_memory_fraction(fraction);
    EXPECT_EQ(world.allocator.memory_fraction(), fraction);
  }
}

TEST(AMemoryFraction, MayComeFromTheOptions) {
  World world(100 * kMiB, "per_process_memory_fraction:0.25");
  EXPECT_EQ(world.allocator.memory_fraction(), 0.25);
  EXPECT_THROW(world.allocate(26 * kMiB), OutOfMemory);
  world.allocate(24 * kMiB);
}

// ---- Emptying the cache

TEST(EmptyCache, GivesBackSegmentsWithoutALiveBlock) {
  World world;
  void* kept = world.allocate(kMiB);
  void* gone = world.allocate(30 * kMiB);
  world.allocator.deallocate(gone);
  world.allocator.empty_cache();
  EXPECT_EQ(world.reserved(), 2 * kMiB);
  EXPECT_EQ(world.count(DeviceCall::free), 1u);
  EXPECT_EQ(world.device->used_bytes(), 2 * kMiB);
  world.allocator.deallocate(kept);
  world.allocator.empty_cache();
  EXPECT_EQ(world.reserved(), 0u);
  EXPECT_EQ(world.device->used_bytes(), 0u);
}

TEST(EmptyCache, KeepsSegmentsWithALiveBlock) {
  World world;
  world.allocate(2 * kMiB);
  void* second = world.allocate(2 * kMiB);
  world.allocator.deallocate(second);
  world.allocator.empty_cache();
  EXPECT_EQ(world.reserved(), 20 * kMiB);
  EXPECT_EQ(world.allocate(2 * kMiB), second);
}

TEST(EmptyCache, GivesBackLargeSegmentsFirst) {
  SimulatedDevice::Config config = World::config_of(kGiB);
  config.log_calls = true;
  World world(config);
  world.allocator.deallocate(world.allocate(100));
  world.allocator.deallocate(world.allocate(30 * kMiB));
  world.device->take_log();
  world.allocator.empty_cache();
  std::vector<Address> freed;
  for (const LoggedCall& call : world.device->take_log()) {
    if (call.call == DeviceCall::free) freed.push_back(call.argument);
  }
  ASSERT_EQ(freed.size(), 2u);
  EXPECT_GT(freed[0], freed[1]);
}

TEST(EmptyCache, CountsOneSynchronization) {
  World world;
  world.allocator.empty_cache();
  world.allocator.empty_cache(0);
  EXPECT_EQ(world.allocator.memory_stats().num_sync_all_streams, 2);
}

// ---- Asking about memory

TEST(LargestAvailable, IsTheLargestFreeBlockOrTheDevicesFreeMemory) {
  World world(100 * kMiB);
  EXPECT_EQ(world.allocator.largest_available(), 100 * kMiB);
  EXPECT_EQ(world.allocator.largest_available(0, false), 0u);
  void* ptr = world.allocate(60 * kMiB);
  EXPECT_EQ(world.allocator.largest_available(), 40 * kMiB);
  world.allocator.deallocate(ptr);
  EXPECT_EQ(world.allocator.largest_available(), 60 * kMiB);
  EXPECT_EQ(world.allocator.largest_available(0, false), 60 * kMiB);
  world.allocate(12 * kMiB);
  EXPECT_EQ(world.allocator.largest_available(0, false), 48 * kMiB);
}

TEST(BaseAllocation, IsTheWholeSegment) {
  World world;
  void* first = world.allocate(2 * kMiB);
  void* second = world.allocate(3 * kMiB);
  const CachingAllocator::Range range = world.allocator.base_allocation(second);
  EXPECT_EQ(range.base, first);
  EXPECT_EQ(range.bytes, 20 * kMiB);
}

TEST(AnAllocation, KnowsItsRequestAndItsDevice) {
  World world;
  void* ptr = world.allocate(1000);
  EXPECT_EQ(world.allocator.requested_size(ptr), 1000u);
  EXPECT_EQ(world.allocator.device_of(ptr), 0);
  EXPECT_EQ(world.allocator.device_of(after(ptr, 512)), -1);
  EXPECT_EQ(world.allocator.device_of(nullptr), -1);
  world.allocator.deallocate(ptr);
  EXPECT_EQ(world.allocator.device_of(ptr), -1);
}

TEST(ASizedFree, AcceptsTheAllocationsOwnFigures) {
  World world;
  void* ptr = world.allocate(1000);
  world.allocator.deallocate(ptr, 1000, 0, nullptr);
  EXPECT_EQ(world.active(), 0u);
}

// ---- Caching off

TEST(WithCachingOff, RequestsGoStraightToTheDevice) {
  World world;
  EXPECT_TRUE(world.allocator.caching_enabled());
  world.allocator.set_caching_enabled(false);
  EXPECT_FALSE(world.allocator.caching_enabled());
  const DeviceStats before = world.allocator.memory_stats();
  void* ptr = world.allocate(kMiB);
  EXPECT_EQ(world.allocator.memory_stats(), before);
  EXPECT_EQ(world.device->used_bytes(), 2 * kMiB);
  world.allocator.deallocate(ptr);
  EXPECT_EQ(world.device->used_bytes(), 0u);
  EXPECT_EQ(world.count(DeviceCall::free), 1u);
  EXPECT_EQ(world.allocator.memory_stats(), before);
  EXPECT_EQ(world.allocate(0), nullptr);
}

TEST(WithCachingOff, MemoryFromBeforeStillGoesToTheCache) {
  World world;
  void* cached = world.allocate(kMiB);
  world.allocator.set_caching_enabled(false);
  void* direct = world.allocate(kMiB);
  world.allocator.deallocate(cached);
  EXPECT_EQ(world.reserved(), 2 * kMiB);
  EXPECT_EQ(world.allocated(), 0u);
  world.allocator.set_caching_enabled(true);
  EXPECT_EQ(world.allocate(kMiB), cached);
  world.allocator.deallocate(direct);  // handed out while caching was off: back to the device at once
  EXPECT_EQ(world.count(DeviceCall::free), 1u);
  EXPECT_EQ(world.device->used_bytes(), 2 * kMiB);
}

TEST(WithCachingOff, TheDevicesRefusalIsOutOfMemory) {
  World world(10 * kMiB);
  world.allocator.set_caching_enabled(false);
  EXPECT_THROW(world.allocate(12 * kMiB), OutOfMemory);
  EXPECT_THROW(world.allocator.deallocate(reinterpret_cast<void*>(0x1000)), InvalidArgument);
}

// ---- Several devices

TEST(SeveralDevices, KeepTheirMemoryApart) {
  TwoDevices two;
  void* first = two.allocator.allocate(1000, 0);
  void* second = two.allocator.allocate(3 * kMiB, 1);
  EXPECT_EQ(two.allocator.device_of(first), 0);
  EXPECT_EQ(two.allocator.device_of(second), 1);
  EXPECT_EQ(two.allocator.memory_reserved(0), 2 * kMiB);
  EXPECT_EQ(two.allocator.memory_reserved(1), 20 * kMiB);
  two.allocator.deallocate(second);
  EXPECT_EQ(two.allocator.memory_allocated(0), 1024u);
  EXPECT_EQ(two.allocator.memory_allocated(1), 0u);
  EXPECT_EQ(two.allocator.allocate(3 * kMiB, 1), second);
  EXPECT_EQ(two.allocator.validate(), "");
}

TEST(SeveralDevices, AreEmptiedTogetherOrAlone) {
  TwoDevices two;
  for (int i = 0; i < 2; ++i) two.allocator.deallocate(two.allocator.allocate(1000, i));
  two.allocator.empty_cache(1);
  EXPECT_EQ(two.allocator.memory_reserved(0), 2 * kMiB);
  EXPECT_EQ(two.allocator.memory_reserved(1), 0u);
  two.allocator.empty_cache();
  EXPECT_EQ(two.allocator.memory_reserved(0), 0u);
}

TEST(SeveralDevices, HaveLimitsAndOptionsOfTheirOwnAndInCommon) {
  TwoDevices two;
  two.allocator.set_memory_fraction(0.01, 1);
  EXPECT_EQ(two.allocator.memory_fraction(0), 1);
  EXPECT_EQ(two.allocator.memory_fraction(1), 0.01);
  EXPECT_THROW(two.allocator.allocate(20 * kMiB, 1), OutOfMemory);
  two.allocator.allocate(20 * kMiB, 0);
  two.allocator.configure("large_segment_size_mb:12");
  two.allocator.set_memory_fraction(1, 1);
  two.allocator.allocate(2 * kMiB, 1);
  EXPECT_EQ(two.allocator.memory_reserved(1), 12 * kMiB);
}

TEST(SeveralDevices, RunOutOfMemoryEachForItself) {
  TwoDevices two(30 * kMiB);
  two.allocator.allocate(30 * kMiB, 0);
  void* cached = two.allocator.allocate(20 * kMiB, 1);
  two.allocator.deallocate(cached);
  try {
    two.allocator.allocate(2 * kMiB, 0);
    FAIL() << "device 0 is full";
  } catch (const OutOfMemory& error) {
    EXPECT_EQ(error.device(), 0);
    EXPECT_EQ(error.requested_bytes(), 2 * kMiB);
  }
  EXPECT_EQ(two.allocator.memory_reserved(1), 20 * kMiB);  // its cache was left alone
  EXPECT_EQ(two.allocator.memory_stats(1).num_ooms, 0);
}

TEST(TheAllocatorsEnd, GivesEverythingBackToTheDevices) {
  TwoDevices two;
  {
    CachingAllocator allocator({two.device[0], two.device[1]});
    allocator.allocate(1000, 0);
    allocator.deallocate(allocator.allocate(30 * kMiB, 1));
    const Stream other = two.device[0]->new_stream();
    void* waiting = allocator.allocate(5 * kMiB, 0);
    allocator.record_stream(waiting, other);
    two.device[0]->launch(other, 1000);
    allocator.deallocate(waiting);
    EXPECT_GT(two.device[0]->used_bytes() + two.device[1]->used_bytes(), 0u);
  }
  EXPECT_EQ(two.device[0]->used_bytes(), 0u);
  EXPECT_EQ(two.device[1]->used_bytes(), 0u);
}

TEST(AnAllocator, AsksItsDeviceForNothingBeforeTheFirstRequest) {
  World world;
  EXPECT_EQ(world.count(DeviceCall::malloc), 0u);
  EXPECT_EQ(world.count(DeviceCall::event_create), 0u);
  EXPECT_EQ(world.reserved(), 0u);
}

}  // namespace
}  // namespace cachalot
