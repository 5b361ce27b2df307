// Reports: statistics and their resets, fragmentation, history, trackers, snapshots.
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "tests/allocator/testing.h"
#include "tests/reference/accounting.h"

namespace cachalot {
namespace {

using Action = Change::Action;

// ---- The nine arrays

TEST(Statistics, OfASmallAllocationAreInTheSmallPoolAndInAll) {
  World world;
  world.allocate(1000);
  const DeviceStats stats = world.allocator.memory_stats();
  EXPECT_EQ(stats.allocation.small_pool, (Stat{1, 1, 1, 0}));
  EXPECT_EQ(stats.allocation.all, (Stat{1, 1, 1, 0}));
  EXPECT_EQ(stats.allocation.large_pool, Stat{});
  EXPECT_EQ(stats.allocated_bytes.all, (Stat{1024, 1024, 1024, 0}));
  EXPECT_EQ(stats.requested_bytes.all, (Stat{1000, 1000, 1000, 0}));
  EXPECT_EQ(stats.active.all, (Stat{1, 1, 1, 0}));
  EXPECT_EQ(stats.active_bytes.all, (Stat{1024, 1024, 1024, 0}));
  EXPECT_EQ(stats.segment.all, (Stat{1, 1, 1, 0}));
  EXPECT_EQ(stats.reserved_bytes.all, (Stat{2097152, 2097152, 2097152, 0}));
  EXPECT_EQ(stats.inactive_split.all, (Stat{1, 1, 1, 0}));
  EXPECT_EQ(stats.inactive_split_bytes.all, (Stat{2096128, 2096128, 2096128, 0}));
  EXPECT_EQ(stats.num_device_alloc, 1);
}

TEST(Statistics, OfAFreeKeepThePeak) {
  World world;
  world.allocator.deallocate(world.allocate(1000));
  const DeviceStats stats = world.allocator.memory_stats();
  EXPECT_EQ(stats.allocation.all, (Stat{0, 1, 1, 1}));
  EXPECT_EQ(stats.allocated_bytes.all, (Stat{0, 1024, 1024, 1024}));
  EXPECT_EQ(stats.requested_bytes.all, (Stat{0, 1000, 1000, 1000}));
  EXPECT_EQ(stats.reserved_bytes.all, (Stat{2097152, 2097152, 2097152, 0}));
  EXPECT_EQ(stats.inactive_split.all, (Stat{0, 1, 1, 1}));
  EXPECT_EQ(stats.inactive_split_bytes.all, (Stat{0, 2096128, 2096128, 2096128}));
}

TEST(Statistics, OfThePoolsAddUpToAll) {
  World world;
  world.allocate(1000);
  void* large = world.allocate(5 * kMiB);
  world.allocator.deallocate(large);
  world.allocate(2000);
  DeviceStats stats = world.allocator.memory_stats();
  for (const StatArray* array :
       {&stats.allocation, &stats.segment, &stats.active, &stats.inactive_split, &stats.allocated_bytes,
        &stats.reserved_bytes, &stats.active_bytes, &stats.inactive_split_bytes, &stats.requested_bytes}) {
    EXPECT_EQ(array->all.current, array->small_pool.current + array->large_pool.current);
    EXPECT_EQ(array->all.allocated, array->small_pool.allocated + array->large_pool.allocated);
    EXPECT_EQ(array->all.freed, array->small_pool.freed + array->large_pool.freed);
    EXPECT_LE(array->all.peak, array->small_pool.peak + array->large_pool.peak);
  }
}

TEST(ThePeakOfAll, IsNotTheSumOfThePoolsPeaks) {
  World world;
  world.allocator.deallocate(world.allocate(kMiB));
  world.allocate(3 * kMiB);
  const DeviceStats stats = world.allocator.memory_stats();
  EXPECT_EQ(stats.allocated_bytes.small_pool.peak, static_cast<std::int64_t>(kMiB));
  EXPECT_EQ(stats.allocated_bytes.large_pool.peak, static_cast<std::int64_t>(3 * kMiB));
  EXPECT_EQ(stats.allocated_bytes.all.peak, static_cast<std::int64_t>(3 * kMiB));
}

TEST(InactiveSplit, ShrinksInBytesOnlyWhenASplitBlockIsSplitAgain) {
  World world;
  world.allocate(512);
  world.allocate(1024);
  const DeviceStats stats = world.allocator.memory_stats();
  EXPECT_EQ(stats.inactive_split.all, (Stat{1, 1, 1, 0}));
  EXPECT_EQ(stats.inactive_split_bytes.all, (Stat{2095616, 2096640, 2096640, 1024}));
}

TEST(InactiveSplit, LosesABlockThatIsTakenWhole) {
  World world;
  world.allocate(512);
  void* middle = world.allocate(1024);
  world.allocate(512);
  world.allocator.deallocate(middle);
  EXPECT_EQ(world.allocator.memory_stats().inactive_split.all.current, 2);
  world.allocate(1024);
  EXPECT_EQ(world.allocator.memory_stats().inactive_split.all, (Stat{1, 2, 2, 1}));
}

TEST(InactiveSplit, ChangesByTheNetOfAMerge) {
  World world;
  void* first = world.allocate(1024);
  void* second = world.allocate(1024);
  world.allocate(512);
  world.allocator.deallocate(first);  // +1, + 1024
  world.allocator.reset_accumulated_stats();
  world.allocator.deallocate(second);  // merged with one free neighbour: the count stays, 1024 bytes are added
  const DeviceStats stats = world.allocator.memory_stats();
  EXPECT_EQ(stats.inactive_split.all.allocated, 0);
  EXPECT_EQ(stats.inactive_split.all.freed, 0);
  EXPECT_EQ(stats.inactive_split_bytes.all.allocated, 1024);
  EXPECT_EQ(stats.inactive_split_bytes.all.freed, 0);
}

TEST(InactiveSplit, EndsWithTheLastLiveBlockOfASegment) {
  World world;
  void* first = world.allocate(1024);
  void* middle = world.allocate(1024);
  world.allocator.deallocate(first);
  world.allocator.reset_accumulated_stats();
  world.allocator.deallocate(middle);  // one free segment: two pieces are gone in one step
  const DeviceStats stats = world.allocator.memory_stats();
  EXPECT_EQ(stats.inactive_split.all.current, 0);
  EXPECT_EQ(stats.inactive_split.all.freed, 2);
  EXPECT_EQ(stats.inactive_split_bytes.all.freed, 2096128);
  EXPECT_EQ(stats.inactive_split_bytes.all.allocated, 0);
}

// ---- Resets

TEST(ResetPeak, StartsFromWhatIsNow) {
  World world;
  world.allocator.deallocate(world.allocate(30 * kMiB));
  world.allocate(1000);
  world.allocator.reset_peak_stats();
  DeviceStats stats = world.allocator.memory_stats();
  for_each_named_stat(stats, [](const std::string& name, Stat& stat) { EXPECT_EQ(stat.peak, stat.current) << name; });
  EXPECT_EQ(stats.allocated_bytes.all.allocated, static_cast<std::int64_t>(30 * kMiB + 1024));
  EXPECT_EQ(world.allocator.max_memory_allocated(), 1024u);
  EXPECT_EQ(world.allocator.max_memory_reserved(), 32 * kMiB);
  world.allocate(1000);
  EXPECT_EQ(world.allocator.max_memory_allocated(), 2048u);
}

TEST(ResetAccumulated, ZeroesSumsAndCounters) {
  World world(40 * kMiB);
  world.allocator.deallocate(world.allocate(30 * kMiB));
  void* ptr = world.allocate(20 * kMiB);
  EXPECT_THROW(world.allocate(30 * kMiB), OutOfMemory);
  world.allocator.reset_accumulated_stats(0);
  DeviceStats stats = world.allocator.memory_stats();
  for_each_named_stat(stats, [](const std::string& name, Stat& stat) {
    EXPECT_EQ(stat.allocated, 0) << name;
    EXPECT_EQ(stat.freed, 0) << name;
  });
  EXPECT_EQ(stats.num_alloc_retries + stats.num_ooms + stats.num_sync_all_streams, 0);
  EXPECT_EQ(stats.num_device_alloc + stats.num_device_free, 0);
  EXPECT_EQ(stats.allocated_bytes.all.current, static_cast<std::int64_t>(20 * kMiB));
  EXPECT_EQ(stats.allocated_bytes.all.peak, static_cast<std::int64_t>(30 * kMiB));
  world.allocator.deallocate(ptr);
  EXPECT_EQ(world.allocator.memory_stats().allocated_bytes.all.freed, static_cast<std::int64_t>(20 * kMiB));
}

TEST(TheSizesOfAnAllocation, AreWhatWasAskedForAndItsBlocks) {
  World world;
  void* const ptr = world.allocate(1000);
  EXPECT_EQ(world.allocator.requested_size(ptr), 1000u);
  EXPECT_EQ(world.allocator.allocated_size(ptr), 1024u);
  world.allocator.deallocate(ptr);
  EXPECT_THROW(world.allocator.allocated_size(ptr), InvalidArgument);
}

TEST(Resets, ReachOneDeviceOrAll) {
  TwoDevices two;
  for (int i = 0; i < 2; ++i) two.allocator.deallocate(two.allocator.allocate(1000, i));
  two.allocator.reset_peak_stats(1);
  EXPECT_EQ(two.allocator.max_memory_allocated(0), 1024u);
  EXPECT_EQ(two.allocator.max_memory_allocated(1), 0u);
  two.allocator.reset_peak_stats();
  two.allocator.reset_accumulated_stats();
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(two.allocator.max_memory_allocated(i), 0u);
    EXPECT_EQ(two.allocator.memory_stats(i).allocation.all.allocated, 0);
  }
}

TEST(ThePeakOfActive, IsItsOwnWhileFreesWait) {
  World world;
  const Stream other = world.device->new_stream();
  void* waiting = world.allocate(3 * kMiB);
  world.allocator.record_stream(waiting, other);
  world.launch(other, 1000);
  world.allocator.deallocate(waiting);
  world.allocate(4 * kMiB);
  DeviceStats stats = world.allocator.memory_stats();
  EXPECT_EQ(stats.allocated_bytes.all.peak, static_cast<std::int64_t>(4 * kMiB));
  EXPECT_EQ(stats.active_bytes.all.peak, static_cast<std::int64_t>(7 * kMiB));
  EXPECT_EQ(stats.active.all.peak, 2);
  world.allocator.reset_peak_stats();
  world.allocator.reset_accumulated_stats();
  world.pass(1000);
  world.allocate(1000);
  stats = world.allocator.memory_stats();
  EXPECT_EQ(stats.active.all, (Stat{2, 2, 1, 1}));
  EXPECT_EQ(stats.active_bytes.all.freed, static_cast<std::int64_t>(3 * kMiB));
}

TEST(TheShortForms, AreTheStatisticsOfTheSameName) {
  World world;
  world.allocator.deallocate(world.allocate(30 * kMiB));
  world.allocate(1000);
  const DeviceStats stats = world.allocator.memory_stats();
  EXPECT_EQ(static_cast<std::int64_t>(world.allocator.memory_allocated()), stats.allocated_bytes.all.current);
  EXPECT_EQ(static_cast<std::int64_t>(world.allocator.memory_reserved()), stats.reserved_bytes.all.current);
  EXPECT_EQ(static_cast<std::int64_t>(world.allocator.max_memory_allocated()), stats.allocated_bytes.all.peak);
  EXPECT_EQ(static_cast<std::int64_t>(world.allocator.max_memory_reserved()), stats.reserved_bytes.all.peak);
}

TEST(StatisticsAsJson, HavePyTorchs122Keys) {
  World world;
  world.allocate(1000);
  const auto json = nlohmann::json::parse(to_json(world.allocator.memory_stats()));
  EXPECT_EQ(json.size(), 122u);
  EXPECT_EQ(json.at("allocated_bytes.small_pool.current"), 1024);
  EXPECT_EQ(json.at("inactive_split_bytes.all.peak"), 2096128);
  EXPECT_EQ(json.at("oversize_segments.freed"), 0);
  EXPECT_EQ(json.at("num_device_alloc"), 1);
  EXPECT_EQ(json.at("max_split_size"), -1);
}

// ---- History

std::vector<Change> trace_of(World& world) { return world.allocator.snapshot().device_traces.at(0); }

TEST(History, RecordsAnAllocationAndItsFree) {
  World world;
  world.allocator.record_history({.max_entries = 100});
  EXPECT_TRUE(world.allocator.history_enabled());
  const Stream stream = world.device->new_stream();
  void* ptr = world.allocate(1000, stream);
  world.allocator.deallocate(ptr);
  world.allocator.empty_cache();
  const std::vector<Change> trace = trace_of(world);
  std::vector<Action> pytorchs;
  for (const Change& change : trace) {
    if (change.action <= Action::oom) pytorchs.push_back(change.action);
  }
  EXPECT_EQ(pytorchs, (std::vector{Action::segment_alloc, Action::alloc, Action::free_requested, Action::free_completed,
                                   Action::segment_free}));
  for (const Change& change : trace) {
    if (change.action == Action::alloc) {
      EXPECT_EQ(change.address, address(ptr));
      EXPECT_EQ(change.bytes, 1000u);
      EXPECT_EQ(change.block_bytes, 1024u);
      EXPECT_EQ(change.stream, stream);
      EXPECT_EQ(change.pool_kind, PoolKind::small);
    }
    if (change.action == Action::segment_alloc) {
      EXPECT_EQ(change.bytes, 2 * kMiB);
    }
  }
}

TEST(History, IsOffAtFirstAndForgottenWhenSwitchedOff) {
  World world;
  EXPECT_FALSE(world.allocator.history_enabled());
  world.allocate(1000);
  EXPECT_TRUE(trace_of(world).empty());
  world.allocator.record_history({.max_entries = 100});
  world.allocate(1000);
  EXPECT_FALSE(trace_of(world).empty());
  world.allocator.record_history({.enabled = false});
  EXPECT_FALSE(world.allocator.history_enabled());
  EXPECT_TRUE(trace_of(world).empty());
}

TEST(History, KeepsTheLastEntriesOnly) {
  World world;
  world.allocator.record_history({.max_entries = 3});
  for (std::size_t i = 1; i <= 10; ++i) world.allocate(i);
  const std::vector<Change> trace = trace_of(world);
  ASSERT_EQ(trace.size(), 3u);
  EXPECT_EQ(trace[0].bytes, 8u);
  EXPECT_EQ(trace[2].bytes, 10u);
}

TEST(History, KeepsTheLastEntriesWhenItShrinks) {
  World world;
  world.allocator.record_history({.max_entries = 100});
  for (std::size_t i = 1; i <= 10; ++i) world.allocate(i);
  world.allocator.record_history({.max_entries = 3});
  const std::vector<Change> trace = trace_of(world);
  ASSERT_EQ(trace.size(), 3u);
  EXPECT_EQ(trace[0].bytes, 8u);
  EXPECT_EQ(trace[2].bytes, 10u);
}

TEST(History, ShowsASnapshotFromTheNextOneOn) {
  World world;
  world.allocator.record_history({.max_entries = 100});
  world.allocate(1000);
  world.allocator.deallocate(world.allocate(77));
  const std::vector<Change> before = trace_of(world);
  EXPECT_NE(before.back().action, Action::snapshot);
  const std::vector<Change> after = trace_of(world);
  ASSERT_EQ(after.size(), before.size() + 1);
  EXPECT_EQ(after.back().action, Action::snapshot);
  EXPECT_EQ(after.back().bytes, 1024u);  // in use
}

TEST(History, MayBeCleared) {
  World world;
  world.allocator.record_history({.max_entries = 100});
  world.allocate(1000);
  world.allocator.record_history({.max_entries = 100, .clear = true});
  world.allocate(77);
  const std::vector<Change> trace = trace_of(world);
  ASSERT_EQ(trace.size(), 1u);
  EXPECT_EQ(trace[0].bytes, 77u);
}

TEST(History, LeavesOutTheActionsToSkip) {
  World world;
  world.allocator.record_history(
      {.max_entries = 100, .skip = {Action::alloc, Action::snapshot, Action::free_requested}});
  world.allocator.deallocate(world.allocate(1000));
  for (const Change& change : trace_of(world)) {
    EXPECT_NE(change.action, Action::alloc);
    EXPECT_NE(change.action, Action::snapshot);
    EXPECT_NE(change.action, Action::free_requested);
  }
  EXPECT_EQ(trace_of(world).size(), 2u);  // the segment, the free
}

TEST(History, OfAnOutOfMemoryHasTheFreeBytesForAddressAndTheRoundedRequestForSize) {
  World world(30 * kMiB);
  world.allocator.record_history({.max_entries = 100});
  EXPECT_THROW(world.allocate(31 * kMiB - 1), OutOfMemory);
  bool seen = false;
  for (const Change& change : trace_of(world)) {
    if (change.action != Action::oom) continue;
    seen = true;
    EXPECT_EQ(change.address, 30 * kMiB);
    EXPECT_EQ(change.bytes, 31 * kMiB) << "the segment would have 32 MiB";
  }
  EXPECT_TRUE(seen);
}

TEST(History, IsKeptByDevice) {
  TwoDevices two;
  two.allocator.record_history({.max_entries = 100, .skip = {Action::snapshot}});
  two.allocator.allocate(1000, 1);
  const Snapshot snapshot = two.allocator.snapshot();
  ASSERT_EQ(snapshot.device_traces.size(), 2u);
  EXPECT_EQ(snapshot.device_traces[0].size(), 0u);
  EXPECT_EQ(snapshot.device_traces[1].size(), 2u);
  EXPECT_EQ(snapshot.device_traces[1][0].device, 1);
}

TEST(HistoryEntries, CarryTheDevicesClock) {
  World world;
  world.allocator.record_history({.max_entries = 100, .skip = {Action::segment_alloc, Action::snapshot}});
  world.pass(1234);
  world.allocate(1000);
  EXPECT_EQ(trace_of(world).at(0).time_us, 1234);
}

// Returns the entries of an allocation and its free that carry a context, as letters: Segment, Alloc, Requested,
// Completed.
std::string with_context(HistoryOptions::Contexts contexts, int* recorded = nullptr) {
  World world;
  int made = 0;
  world.allocator.record_history({.max_entries = 100, .contexts = contexts, .recorder = [&]() -> Context {
                                    ++made;
                                    return std::make_shared<int>(made);
                                  }});
  world.allocator.deallocate(world.allocate(1000));
  std::string letters;
  for (const Change& change : trace_of(world)) {
    if (change.context == nullptr) continue;
    if (change.action == Action::segment_alloc) letters += 'S';
    if (change.action == Action::alloc) letters += 'A';
    if (change.action == Action::free_requested) letters += 'R';
    if (change.action == Action::free_completed) letters += 'C';
  }
  if (recorded != nullptr) *recorded = made;
  return letters;
}

TEST(Contexts, AreRecordedByLevel) {
  int made = 0;
  EXPECT_EQ(with_context(HistoryOptions::Contexts::never, &made), "");
  EXPECT_EQ(made, 0);
  EXPECT_EQ(with_context(HistoryOptions::Contexts::state), "");  // in the segments and blocks of snapshots alone
  EXPECT_EQ(with_context(HistoryOptions::Contexts::alloc, &made), "SA");
  EXPECT_EQ(made, 1);
  EXPECT_EQ(with_context(HistoryOptions::Contexts::all), "SARC");
}

TEST(Contexts, OfStateAreInSegmentsAndBlocks) {
  World world;
  const Context context = std::make_shared<int>(7);
  world.allocator.record_history(
      {.max_entries = 100, .contexts = HistoryOptions::Contexts::state, .recorder = [&] { return context; }});
  world.allocate(1000);
  const Snapshot snapshot = world.allocator.snapshot();
  EXPECT_EQ(snapshot.segments.at(0).context, context);
  EXPECT_EQ(snapshot.segments[0].blocks.at(0).context, context);
  EXPECT_EQ(snapshot.segments[0].blocks.at(1).context, nullptr);
}

TEST(Contexts, GoWithTheirAllocationAlsoWhenHistoryIsOffByThen) {
  World world;
  const Context context = std::make_shared<int>(7);
  world.allocator.record_history(
      {.max_entries = 100, .contexts = HistoryOptions::Contexts::state, .recorder = [&] { return context; }});
  void* ptr = world.allocate(1000);
  world.allocator.record_history({.enabled = false});
  EXPECT_EQ(world.allocator.snapshot().segments.at(0).blocks.at(0).context, context);
  world.allocator.deallocate(ptr);
  world.allocate(1000);
  EXPECT_EQ(world.allocator.snapshot().segments.at(0).blocks.at(0).context, nullptr);
}

TEST(Contexts, OfAFreedBlockAreNotThoseOfTheNext) {
  World world;
  world.allocator.record_history({.max_entries = 100, .contexts = HistoryOptions::Contexts::state, .recorder = [] {
                                    return std::make_shared<int>(7);
                                  }});
  void* const ptr = world.allocate(1000);
  world.allocator.deallocate(ptr);
  world.allocator.record_history({.enabled = false});
  ASSERT_EQ(world.allocate(1000), ptr);
  EXPECT_EQ(world.allocator.snapshot().segments.at(0).blocks.at(0).context, nullptr);
}

TEST(ASegment, KeepsTheContextOfItsFirstAllocation) {
  World world;
  int made = 0;
  world.allocator.record_history({.max_entries = 100,
                                  .contexts = HistoryOptions::Contexts::all,
                                  .recorder = [&]() -> Context { return std::make_shared<int>(++made); }});
  world.allocator.deallocate(world.allocate(1000));
  world.allocate(1000);
  const Snapshot snapshot = world.allocator.snapshot();
  ASSERT_NE(snapshot.segments.at(0).context, nullptr);
  EXPECT_EQ(*std::static_pointer_cast<int>(snapshot.segments[0].context), 1);
  EXPECT_EQ(*std::static_pointer_cast<int>(snapshot.segments[0].blocks.at(0).context), 3);
}

TEST(AContextRecorder, MayCallTheAllocator) {
  World world;
  std::size_t seen = 1;
  world.allocator.record_history(
      {.max_entries = 100, .contexts = HistoryOptions::Contexts::all, .recorder = [&]() -> Context {
         seen = world.allocated();
         return nullptr;
       }});
  void* ptr = world.allocate(1000);
  EXPECT_EQ(seen, 0u);
  world.allocator.deallocate(ptr);
  EXPECT_EQ(seen, 1024u);
}

// ---- Trackers

TEST(Annotations, AreAskedForWithEveryEntry) {
  World world;
  int asked = 0;
  HistoryOptions history;
  history.max_entries = 100;
  history.annotate = [&] { return std::make_shared<int>(++asked); };
  world.allocator.record_history(history);
  world.allocator.deallocate(world.allocate(kMiB));
  const std::vector<Change> trace = world.allocator.snapshot().device_traces.at(0);
  ASSERT_GE(trace.size(), 3u);
  for (std::size_t i = 0; i < trace.size(); ++i) {
    ASSERT_NE(trace[i].annotation, nullptr) << to_string(trace[i].action);
    EXPECT_EQ(*static_cast<int*>(trace[i].annotation.get()), static_cast<int>(i) + 1);
  }
}

TEST(ATracker, SeesEveryChangeWithoutHistory) {
  World world;
  std::vector<Action> seen;
  world.allocator.add_change_tracker([&](const Change& change) { seen.push_back(change.action); });
  void* ptr = world.allocate(1000);
  world.allocator.deallocate(ptr);
  EXPECT_EQ(seen, (std::vector{Action::segment_alloc, Action::alloc, Action::free_requested, Action::free_completed}));
  EXPECT_FALSE(world.allocator.history_enabled());
}

TEST(ATracker, SeesOneSegmentComeAndGo) {
  // The steps are those of PyTorch's cuda_allocatorTraceTracker_test.
  World world;
  int allocated = 0;
  int freed = 0;
  world.allocator.add_change_tracker([&](const Change& change) {
    allocated += change.action == Action::segment_alloc;
    freed += change.action == Action::segment_free;
  });
  world.allocator.deallocate(world.allocate(500 * kMiB));
  EXPECT_EQ(allocated, 1);
  EXPECT_EQ(freed, 0);
  world.allocator.empty_cache();
  EXPECT_EQ(freed, 1);
}

TEST(ATracker, SeesASegmentGoWhileTheDeviceStillHasIt) {
  World world;
  std::vector<std::pair<Action, bool>> seen;
  world.allocator.add_change_tracker([&](const Change& change) {
    if (change.action == Action::segment_free || change.action == Action::segment_alloc)
      seen.emplace_back(change.action, world.device->memory_at(change.address).has_value());
  });
  world.allocator.deallocate(world.allocate(500 * kMiB));
  world.device->set_faults({{.call = DeviceCall::free, .out_of_memory = false, .code = 719}});
  EXPECT_THROW(world.allocator.empty_cache(), CudaError);
  world.allocator.empty_cache();
  const std::pair came{Action::segment_alloc, true};
  const std::pair goes{Action::segment_free, true};
  EXPECT_EQ(seen, (std::vector{came, goes, /*refused*/ came, goes}));
}

TEST(ATracker, MakesNoHistory) {
  World world;
  world.allocator.add_change_tracker([](const Change&) {});
  world.allocate(1000);
  EXPECT_TRUE(trace_of(world).empty());
}

TEST(TheFoldOfAllChanges, IsTheStatistics) {
  World world(60 * kMiB, "max_split_size_mb:24");
  StatsFold fold(24 * kMiB);
  world.allocator.add_change_tracker([&](const Change& change) { fold(change); });
  const Stream other = world.device->new_stream();
  void* large = world.allocate(30 * kMiB);
  void* small = world.allocate(1000);
  world.allocator.record_stream(small, other);
  world.launch(other);
  world.allocator.deallocate(small);
  EXPECT_THROW(world.allocate(40 * kMiB), OutOfMemory);
  world.allocator.deallocate(large);
  world.allocate(40 * kMiB);
  world.allocator.empty_cache();
  EXPECT_EQ(difference(world.allocator.memory_stats(), fold.stats), "");
  EXPECT_EQ(difference(only_current(world.allocator.memory_stats()), recount(world.allocator.snapshot(), 0)), "");
}

// ---- Snapshots

TEST(ASnapshot, ShowsSegmentsAndBlocks) {
  World world;
  const Stream stream = world.device->new_stream();
  const Stream other = world.device->new_stream();
  void* first = world.allocate(1000, stream);
  void* second = world.allocate(2000, stream);
  world.allocate(3 * kMiB, stream);
  world.allocator.record_stream(second, other);
  world.launch(other);
  world.allocator.deallocate(second);
  const Snapshot snapshot = world.allocator.snapshot();
  ASSERT_EQ(snapshot.segments.size(), 2u);
  const SegmentSnapshot& small = snapshot.segments[0];
  EXPECT_EQ(small.device, 0);
  EXPECT_EQ(small.address, address(first));
  EXPECT_EQ(small.total_size, 2 * kMiB);
  EXPECT_EQ(small.allocated_size, 1024u);
  EXPECT_EQ(small.active_size, 3072u);
  EXPECT_EQ(small.requested_size, 3000u);
  EXPECT_EQ(small.stream, stream);
  EXPECT_EQ(small.segment_type, PoolKind::small);
  EXPECT_EQ(small.segment_pool_id, PoolId{});
  EXPECT_FALSE(small.is_expandable);
  ASSERT_EQ(small.blocks.size(), 3u);
  EXPECT_EQ(small.blocks[1].address, address(second));
  EXPECT_EQ(small.blocks[1].size, 2048u);
  EXPECT_EQ(small.blocks[1].requested_size, 2000u);
  EXPECT_EQ(small.blocks[1].state, BlockSnapshot::State::active_pending_free);
  EXPECT_EQ(snapshot.segments[1].segment_type, PoolKind::large);
  EXPECT_EQ(snapshot.segments[1].allocated_size, 3 * kMiB);
}

TEST(ASnapshot, ShowsAFreeBlockWithItsLastRequest) {
  World world;
  void* ptr = world.allocate(1000);
  world.allocate(512);
  world.allocator.deallocate(ptr);
  const SegmentSnapshot segment = world.allocator.snapshot().segments.at(0);
  EXPECT_EQ(segment.blocks.at(0).state, BlockSnapshot::State::inactive);
  EXPECT_EQ(segment.blocks[0].requested_size, 1000u);
  EXPECT_EQ(segment.requested_size, 512u);  // of the other block alone
}

TEST(ASnapshot, IsSortedByAddressOverAllDevicesAndStreams) {
  TwoDevices two;
  for (int i = 0; i < 4; ++i) {
    two.allocator.allocate(3 * kMiB, i % 2, two.device[static_cast<std::size_t>(i % 2)]->new_stream());
    two.allocator.allocate(1000, i % 2);
  }
  const Snapshot snapshot = two.allocator.snapshot();
  EXPECT_EQ(snapshot.segments.size(), 6u);
  for (std::size_t i = 1; i < snapshot.segments.size(); ++i) {
    EXPECT_LT(snapshot.segments[i - 1].address, snapshot.segments[i].address);
  }
}

TEST(ASnapshot, OfAPoolShowsThatPoolAlone) {
  World world;
  world.allocate(1000);
  {
    const InPool in_pool(world.allocator, {0, 5});
    world.allocate(3 * kMiB);
  }
  const Snapshot snapshot = world.allocator.snapshot({0, 5});
  ASSERT_EQ(snapshot.segments.size(), 1u);
  EXPECT_EQ(snapshot.segments[0].segment_pool_id, (PoolId{0, 5}));
  EXPECT_EQ(world.allocator.snapshot().segments.size(), 2u);
}

TEST(ASnapshot, WithoutTracesHasNone) {
  World world;
  world.allocator.record_history({.max_entries = 100});
  world.allocate(1000);
  EXPECT_TRUE(world.allocator.snapshot({}, false).device_traces.empty());
}

TEST(ASnapshot, KnowsTheOptions) {
  World world(kGiB, "max_split_size_mb:40");
  EXPECT_EQ(world.allocator.snapshot().options.max_split_size, 40 * kMiB);
  world.allocator.configure("max_split_size_mb:50");
  EXPECT_EQ(world.allocator.snapshot().options.max_split_size, 50 * kMiB);
}

TEST(ASnapshotAsJson, HasPyTorchsKeys) {
  World world;
  world.allocator.record_history({.max_entries = 100});
  world.allocator.deallocate(world.allocate(1000));
  const auto json = nlohmann::json::parse(to_json(world.allocator.snapshot()));
  for (const char* key : {"segments", "device_traces", "allocator_settings", "external_annotations"}) {
    EXPECT_TRUE(json.contains(key)) << key;
  }
  const auto& segment = json.at("segments").at(0);
  for (const char* key : {"device", "address", "total_size", "allocated_size", "active_size", "requested_size",
                          "stream", "segment_type", "segment_pool_id", "is_expandable", "frames", "blocks"}) {
    EXPECT_TRUE(segment.contains(key)) << key;
  }
  EXPECT_EQ(segment.at("segment_type"), "small");
  EXPECT_EQ(segment.at("blocks").at(0).at("state"), "inactive");
  std::string actions;
  for (const auto& entry : json.at("device_traces").at(0)) actions += entry.at("action").get<std::string>() + " ";
  EXPECT_EQ(actions, "segment_alloc alloc free_requested free_completed ");
}

TEST(TheGroups, AreOfNoUseInAForkedChild) {
  World world;
  AllocatorFigures& figures = world.allocator;
  EXPECT_EXIT(
      {
        try {
          figures.memory_allocated();
        } catch (const InvalidArgument&) {
          std::_Exit(7);
        }
        std::_Exit(0);
      },
      ::testing::ExitedWithCode(7), "");
}

TEST(SegmentSnapshots, AreNumberedInTheOrderInWhichTheSegmentsCame) {
  World world;
  void* const first = world.allocate(30 * kMiB);
  world.allocate(40 * kMiB);
  world.allocator.deallocate(first);
  world.allocator.empty_cache();
  world.allocate(50 * kMiB);
  for (const SegmentSnapshot& segment : world.allocator.snapshot().segments)
    EXPECT_EQ(segment.number, segment.total_size == 40 * kMiB ? 2u : 3u);
}

}  // namespace
}  // namespace cachalot
