#include "tools/replay/replay.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "cachalot/errors.h"
#include "tests/tools/data_files.h"
#include "tests/tools/temporary_file.h"

namespace cachalot::tools {
namespace {

Trace trace_of(const std::string& text) { return read_trace(TemporaryFile(text).path()); }

ReplayOptions on_device(std::size_t bytes) {
  ReplayOptions options;
  options.device_bytes = bytes;
  return options;
}

std::uint64_t calls(const ReplayResult& result, std::string_view name) {
  return std::ranges::find(result.device_calls, name, &CallCount::name)->count;
}

std::string complaint_about_replay(const Trace& trace, const ReplayOptions& options) {
  try {
    replay(trace, options);
    return "";
  } catch (const InvalidArgument& error) {
    return error.what();
  }
}

// A block of 1024 bytes in a small segment of 2 MiB and one of 3 MiB + 512 in a large segment of 20 MiB.
const std::string kTwoBlocks = "a,1,1000,0\na,2,3145729,0\n";

TEST(Replay, CountsBytesAsPyTorchDoes) {
  const ReplayResult result = replay(trace_of(kTwoBlocks + "f,1\nf,2\n"), {});
  EXPECT_EQ(result.events, 4u);
  EXPECT_EQ(result.peak_requested_bytes, 1000u + 3145729u);
  EXPECT_EQ(result.peak_allocated_bytes, 1024u + 3146240u);
  EXPECT_EQ(result.peak_reserved_bytes, 22 * kMiB);
  EXPECT_EQ(result.peak_driver_bytes, 22 * kMiB);
  EXPECT_DOUBLE_EQ(result.ratio, 22.0 * 1048576 / (1000 + 3145729));
  EXPECT_EQ(result.ooms, 0u);
  EXPECT_EQ(result.first_oom_event, std::nullopt);
  EXPECT_EQ(result.min_device_bytes, std::nullopt);
  EXPECT_GT(result.ns_per_event, 0);
}

// In parts out of its file or from memory: the same decisions at every event, and so the same figures.
TEST(Replay, OfATraceThatStaysInItsFileIsTheSame) {
  const std::string path = kTraces + "frag_toy.csv.gz";
  ReplayOptions options = on_device(3300 * kMiB);
  options.iterations = 2;
  options.find_min_device = true;
  const TemporaryFile held_steps, parted_steps;
  options.steps_path = held_steps.path();
  const ReplayResult held = replay(read_trace(path), options);
  options.steps_path = parted_steps.path();
  const ReplayResult parted = replay(read_trace(InputFile(path, "trace"), /*most_held_events=*/10), options);
  EXPECT_TRUE(read_whole(held_steps.path()) == read_whole(parted_steps.path()));
  EXPECT_EQ(parted.events, held.events);
  EXPECT_EQ(parted.peak_reserved_bytes, held.peak_reserved_bytes);
  EXPECT_EQ(parted.external_fragmentation, held.external_fragmentation);
  EXPECT_EQ(parted.memory_calls_per_iteration, held.memory_calls_per_iteration);
  EXPECT_EQ(parted.late_allocations, held.late_allocations);
  EXPECT_EQ(parted.late_driver_allocations, held.late_driver_allocations);
  EXPECT_EQ(parted.min_device_bytes, held.min_device_bytes);
  EXPECT_GT(parted.ns_per_event, 0);
}

TEST(Replay, CountsDeviceCallsAndTheirLatencies) {
  const ReplayResult result = replay(trace_of(kTwoBlocks), {});
  EXPECT_EQ(calls(result, "malloc"), 2u);
  EXPECT_EQ(calls(result, "free"), 0u);
  EXPECT_EQ(result.memory_calls, 2u);
  EXPECT_EQ(result.device_wide_synchronizations, 0u);
  EXPECT_EQ(result.live_mappings, 0u);
  const LatencyModel latency = LatencyModel::published();
  EXPECT_DOUBLE_EQ(result.driver_us, 2 * latency[DeviceCall::malloc] + 22 * latency.per_mib(DeviceCall::malloc));
}

TEST(Replay, TakesFragmentationAtTheEventThatFirstReachesThePeakOfReserved) {
  // At event 1 reserved reaches 22 MiB; afterwards nothing is reserved, but fragmentation changes.
  const ReplayResult result = replay(trace_of(kTwoBlocks + "f,1\nf,2\na,3,512,0\n"), {});
  const double allocated = 1024 + 3146240;
  EXPECT_DOUBLE_EQ(result.internal_fragmentation, 1 - (1000 + 3145729) / allocated);
  EXPECT_DOUBLE_EQ(result.external_fragmentation, 1 - (20.0 * 1048576 - 3146240) / (22.0 * 1048576 - allocated));
}

TEST(Replay, GoesOnAfterAFailedAllocationAndIgnoresItsFree) {
  const ReplayResult result =
      replay(trace_of(kTwoBlocks + "a,3,31457280,0\nf,3\na,4,31457280,0\nf,1\nf,2\n"), on_device(22 * kMiB));
  EXPECT_EQ(result.ooms, 2u);
  EXPECT_EQ(result.first_oom_event, 2u);
  EXPECT_EQ(result.retries, 2u);
  EXPECT_EQ(result.peak_requested_bytes, 1000u + 3145729u);
}

TEST(Replay, CountsRetriesThatSucceed) {
  const ReplayResult result = replay(trace_of("a,1,20971520,0\nf,1\na,2,512,0\n"), on_device(20 * kMiB));
  EXPECT_EQ(result.ooms, 0u);
  EXPECT_EQ(result.retries, 1u);
  EXPECT_EQ(calls(result, "free"), 1u);
}

TEST(Replay, KeepsTheStreamsOfATraceApart) {
  EXPECT_EQ(replay(trace_of("a,1,512,0\nf,1\na,2,512,0\n"), {}).peak_reserved_bytes, 2 * kMiB);
  EXPECT_EQ(replay(trace_of("a,1,512,0\nf,1\na,2,512,9\n"), {}).peak_reserved_bytes, 4 * kMiB);
}

TEST(Replay, AppliesTheConfiguration) {
  ReplayOptions options;
  options.config = "large_segment_size_mb:32";
  EXPECT_EQ(replay(trace_of(kTwoBlocks), options).peak_reserved_bytes, 34 * kMiB);
}

TEST(Replay, AppliesTheMemoryFraction) {
  ReplayOptions options = on_device(44 * kMiB);
  EXPECT_EQ(replay(trace_of(kTwoBlocks + "a,3,512,3\n"), options).ooms, 0u);
  options.memory_fraction = 0.5;
  const ReplayResult result = replay(trace_of(kTwoBlocks + "a,3,512,3\n"), options);
  EXPECT_EQ(result.ooms, 1u);
  EXPECT_EQ(result.first_oom_event, 2u);
}

TEST(Replay, TakesTheFiguresOfTheFirstPassHoweverManyAreTimed) {
  const Trace trace = read_trace(kTraces + "frag_toy.csv.gz");
  ReplayOptions options = on_device(3300 * kMiB);
  const ReplayResult once = replay(trace, options);
  options.repeat = 3;
  const ReplayResult thrice = replay(trace, options);
  EXPECT_GT(once.retries, 0u);
  EXPECT_EQ(thrice.retries, once.retries);
  EXPECT_EQ(thrice.peak_reserved_bytes, once.peak_reserved_bytes);
  EXPECT_EQ(thrice.driver_us, once.driver_us);
  EXPECT_EQ(calls(thrice, "malloc"), calls(once, "malloc"));
}

TEST(Replay, TimesEachPassOnceAndFreesWhatItLeavesAlive) {
  int passes = 0;
  // Each pass leaves 20 MiB alive on a device with room for one of them: freed between passes, or the second one fails.
  const Trace trace = trace_of("a,1,20971520,0\n");
  const std::int64_t ns = time_best_pass(trace, on_device(20 * kMiB), 3, [&](int done) { EXPECT_EQ(done, ++passes); });
  EXPECT_EQ(passes, 3);
  EXPECT_GT(ns, 0);
}

TEST(Replay, ReportsItsProgressInOrderUpToTheEnd) {
  const Trace trace = read_trace(kTraces + "moe.csv.gz");
  std::vector<double> seen;
  ReplayOptions options;
  options.progress = [&](double done) { seen.push_back(done); };
  replay(trace, options);
  EXPECT_GT(seen.size(), 10u);
  EXPECT_TRUE(std::ranges::is_sorted(seen));
  EXPECT_DOUBLE_EQ(seen.back(), 1);
}

TEST(Replay, RefusesADeviceSmallerThanASegment) {
  EXPECT_EQ(complaint_about_replay(trace_of(kTwoBlocks), on_device(2 * kMiB - 1)),
            "a device of 2097151 bytes is smaller than one segment (2097152 bytes)");
  EXPECT_EQ(complaint_about_replay(trace_of(kTwoBlocks), on_device(2 * kMiB)), "");
}

TEST(Replay, RefusesAMemoryFractionOutOfRange) {
  ReplayOptions options;
  for (const double fraction : {-0.1, 1.5, std::nan("")}) {
    options.memory_fraction = fraction;
    EXPECT_EQ(complaint_about_replay(trace_of(kTwoBlocks), options).rfind("--memory-fraction: ", 0), 0u) << fraction;
  }
}

std::string allocations(int count) {
  std::string text;
  for (int i = 0; i < count; ++i) text += "a," + std::to_string(i) + ",512," + std::to_string(i % 2) + "\n";
  return text;
}

std::int64_t lag_ns(ReplayWorld& world, Stream stream) {
  return world.device().stream_ready_ns(stream) - world.device().clock_ns();
}

TEST(Lag, IsTheWorkOfTheBlocksAheadOfTheHost) {
  const Trace trace = trace_of("a,1,512,0\nf,1\na,2,512,0\n");
  ReplayOptions options;
  options.work_us = 10.5;
  ReplayWorld world(trace, options);
  world.play_with_work(0);
  EXPECT_EQ(lag_ns(world, nullptr), 10'500);
  world.play_with_work(1);
  world.play_with_work(2);
  EXPECT_EQ(lag_ns(world, nullptr), 2 * 10'500 - 2 * 1000);  // each event takes the host a microsecond
}

TEST(Lag, GrowsUntilEachStreamHasAsManyLaunchesPendingAsItMay) {
  const Trace trace = trace_of(allocations(6000));
  ReplayWorld world(trace, {});
  const auto most_ns = static_cast<std::int64_t>(LaunchQueue::kMostPending) * 10'000;
  for (std::size_t event = 0; event < trace.events.size(); ++event) {
    world.play_with_work(event);
    const Stream stream = trace.streams[trace.events[event].stream];
    ASSERT_LE(lag_ns(world, stream), most_ns) << event;
    // By then each launch waits for the one 1,024 before it, or finds that done by the wait for the other stream's.
    if (event >= 4000) {
      ASSERT_GT(lag_ns(world, stream), most_ns - 20'000) << event;
    }
  }
}

TEST(Lag, TellsTheAllocatorNothing) {
  const Trace trace = trace_of(allocations(3000));
  ReplayOptions options;
  options.check_hazards = true;
  ReplayWorld world(trace, options);
  for (std::size_t event = 0; event < trace.events.size(); ++event) world.play_with_work(event);
  EXPECT_EQ(world.device().count(DeviceCall::event_synchronize), 0u);
  EXPECT_EQ(world.device().count(DeviceCall::synchronize), 0u);
  // The first block's work is long done, but the host was never told: another stream's block must not overlap it.
  const void* first = world.pointer(trace.events[0].slot);
  world.device().given_back(reinterpret_cast<Address>(first));
  EXPECT_THROW(world.device().handed_out(reinterpret_cast<Address>(first), 512, trace.streams[1]), HazardError);
  world.device().handed_out(reinterpret_cast<Address>(first), 512, trace.streams[0]);
}

TEST(Lag, IsNoneWithoutWork) {
  const Trace trace = trace_of(allocations(100));
  ReplayOptions options;
  options.work_us = 0;
  for (const bool check_hazards : {false, true}) {
    options.check_hazards = check_hazards;
    ReplayWorld world(trace, options);
    for (std::size_t event = 0; event < trace.events.size(); ++event) {
      const std::int64_t before = world.device().clock_ns();
      world.play_with_work(event);
      EXPECT_GE(world.device().clock_ns(), before + 1000);
      for (const Stream stream : trace.streams) EXPECT_LE(lag_ns(world, stream), 0);
    }
  }
}

TEST(Lag, DoesNotChangeWhatIsDecidedOnSegments) {
  const Trace trace = read_trace(kTraces + "frag_toy.csv.gz");
  ReplayOptions options = on_device(3300 * kMiB);
  const ReplayResult behind = replay(trace, options);
  options.work_us = 0;
  const ReplayResult idle = replay(trace, options);
  EXPECT_GT(behind.retries, 0u);
  EXPECT_EQ(behind.retries, idle.retries);
  EXPECT_EQ(behind.peak_reserved_bytes, idle.peak_reserved_bytes);
  EXPECT_EQ(behind.memory_calls, idle.memory_calls);
}

TEST(Lag, IsRefusedWhereItIsNoTime) {
  ReplayOptions options;
  for (const auto& [work_us, text] : {std::pair{-1.0, "-1"}, {std::nan(""), "nan"}, {1e6 + 1, "1000001"}}) {
    options.work_us = work_us;
    EXPECT_EQ(complaint_about_replay(trace_of(kTwoBlocks), options),
              std::string("--work-us ") + text + ": the work must take 0 to 1000000 microseconds");
  }
}

TEST(Lag, IsRefusedWhereItsRateIsNone) {
  ReplayOptions options;
  for (const auto& [rate, text] : {std::pair{-1.0, "-1"}, {std::nan(""), "nan"}, {0.0005, "0.0005"}}) {
    options.work_gb_per_s = rate;
    EXPECT_EQ(complaint_about_replay(trace_of(kTwoBlocks), options),
              std::string("--work-gb-per-s ") + text + ": it must be 0 or at least 0.001");
  }
}

TEST(Lag, IsLongerForLargerBlocksAndEndsWhereTheHostWaits) {
  const Trace trace = trace_of("a,1,1000000,0\na,2,2000000,0\n");
  ReplayOptions options;
  options.work_gb_per_s = 1;  // a microsecond for 1,000 bytes
  ReplayWorld world(trace, options);
  world.play_with_work(0);
  const std::int64_t first_ends_ns = world.device().stream_ready_ns(nullptr);
  EXPECT_EQ(first_ends_ns - world.device().clock_ns(), 1'010'000);
  world.play_with_work(1);
  EXPECT_EQ(world.device().stream_ready_ns(nullptr) - first_ends_ns, 2'010'000);
  options.wait_every = 2;
  ReplayWorld waiting(trace, options);
  waiting.play_with_work(0);
  EXPECT_GT(waiting.device().stream_ready_ns(nullptr), waiting.device().clock_ns());
  waiting.play_with_work(1);
  EXPECT_EQ(waiting.device().stream_ready_ns(nullptr), waiting.device().clock_ns());
}

// A world after one block of the trace was used on a stream that the allocator was not told of, and freed.
const std::string kOneAfterTheOther = "a,1,512,0\nf,1\na,2,512,0\n";

void use_elsewhere(ReplayWorld& world) {
  const auto address = reinterpret_cast<Address>(world.pointer(0));
  world.device().launch(world.device().new_stream(), 1000, {{address, 512}});
}

TEST(Hazards, AreFoundWhereTheyAreCheckedAndNameTraceAndEvent) {
  const Trace trace = trace_of(kOneAfterTheOther);
  for (const double work_us : {0.0, 10.0}) {
    ReplayOptions options;
    options.work_us = work_us;
    options.check_hazards = true;
    ReplayWorld world(trace, options);
    world.play_with_work(0);
    use_elsewhere(world);
    world.play_with_work(1);
    try {
      world.play_with_work(2);
      ADD_FAILURE() << "no hazard was found";
    } catch (const HazardError& error) {
      EXPECT_EQ(std::string(error.what()).rfind(trace.path + ": event 2 of iteration 1: ", 0), 0u) << error.what();
    }
  }
}

TEST(Hazards, OfTheWorkOnBlocksAreRecordedEvenIfItTakesNoTime) {
  const Trace trace = trace_of(kOneAfterTheOther);
  ReplayOptions options;
  options.work_us = 0;
  options.check_hazards = true;
  ReplayWorld world(trace, options);
  world.play_with_work(0);
  const auto address = reinterpret_cast<Address>(world.pointer(0));
  world.play_with_work(1);
  EXPECT_THROW(world.device().handed_out(address, 512, world.device().new_stream()), HazardError);
}

TEST(Hazards, AreNotLookedForUnlessAskedTo) {
  const Trace trace = trace_of(kOneAfterTheOther);
  ReplayWorld world(trace, {});
  world.play_with_work(0);
  use_elsewhere(world);
  world.play_with_work(1);
  EXPECT_NO_THROW(world.play_with_work(2));
}

TEST(Hazards, AreNoneInTheTracesEvenWhereMemoryRunsOutAndBlocksStayAlive) {
  ReplayOptions options = on_device(2400 * kMiB);
  options.check_hazards = true;
  options.iterations = 2;
  options.find_min_device = true;
  const ReplayResult result = replay(read_trace(kTraces + "streams.csv.gz"), options);
  EXPECT_GT(result.ooms, 0u);
  EXPECT_TRUE(result.check_hazards);
}

TEST(Iterations, GoOnWithTheCacheOfThoseBefore) {
  const Trace trace = read_trace(kTraces + "gpt2_varlen.csv.gz");
  ReplayOptions options;
  const ReplayResult once = replay(trace, options);
  ASSERT_EQ(once.memory_calls_per_iteration.size(), 1u);
  EXPECT_GT(once.memory_calls, 0u);
  EXPECT_EQ(once.memory_calls, once.memory_calls_per_iteration[0]);
  EXPECT_EQ(once.memory_calls, calls(once, "malloc") + calls(once, "free"));

  options.iterations = 3;
  const ReplayResult thrice = replay(trace, options);
  EXPECT_EQ(thrice.memory_calls_per_iteration, (std::vector<std::uint64_t>{once.memory_calls, 0, 0}));
  EXPECT_EQ(thrice.memory_calls, once.memory_calls);
  EXPECT_EQ(thrice.late_driver_allocations, once.late_driver_allocations);
  EXPECT_EQ(thrice.peak_reserved_bytes, once.peak_reserved_bytes);
  EXPECT_EQ(thrice.internal_fragmentation, once.internal_fragmentation);
}

// At first the 4 MiB and the 16 MiB share a segment of 20 MiB. From the second iteration on, the 4 MiB come to lie in
// the segment of 10 MiB, and the 10 MiB need another one.
const std::string kBetterTheFirstTime = "a,1,4194304,0\na,2,16777216,0\na,3,10485760,0\nf,1\nf,2\nf,3\n";

TEST(Iterations, MayEachReachThePeak) {
  ReplayOptions options;
  options.iterations = 3;
  const ReplayResult result = replay(trace_of(kBetterTheFirstTime), options);
  EXPECT_EQ(result.memory_calls_per_iteration, (std::vector<std::uint64_t>{2, 1, 0}));
  EXPECT_EQ(result.peak_requested_bytes, 30 * kMiB);
  EXPECT_EQ(result.peak_reserved_bytes, 40 * kMiB);
  EXPECT_EQ(result.peak_driver_bytes, 40 * kMiB);
  EXPECT_DOUBLE_EQ(result.external_fragmentation, 1 - 6.0 / 10);  // free at the peak: 6 MiB and 4 MiB
}

// Two blocks use one slot; the second one is never freed.
TEST(Iterations, KeepBlocksThatAreNeverFreedFromTheFirstOn) {
  ReplayOptions options;
  options.iterations = 3;
  options.check_hazards = true;
  const std::string text = "a,1,4194304,0\nf,1\na,2,16777216,0\na,3,33554432,0\nf,3\n";
  const ReplayResult result = replay(trace_of(text), options);
  EXPECT_EQ(result.peak_requested_bytes, 48 * kMiB);
  EXPECT_EQ(result.peak_reserved_bytes, 52 * kMiB);
  EXPECT_EQ(result.memory_calls_per_iteration, (std::vector<std::uint64_t>{2, 0, 0}));
}

TEST(Iterations, HaveTheirDriverTimeAndTheRatioUntilTheirEnd) {
  ReplayOptions options;
  options.iterations = 3;
  const ReplayResult result = replay(trace_of(kBetterTheFirstTime), options);
  EXPECT_EQ(result.ratio_per_iteration, (std::vector<double>{1, 40.0 / 30, 40.0 / 30}));
  ASSERT_EQ(result.driver_us_per_iteration.size(), 3u);
  EXPECT_GT(result.driver_us_per_iteration[1], 0);
  EXPECT_EQ(result.driver_us_per_iteration[2], 0);
  EXPECT_DOUBLE_EQ(result.driver_us_per_iteration[0] + result.driver_us_per_iteration[1], result.driver_us);
}

TEST(Iterations, TryAgainWhatFailed) {
  ReplayOptions options = on_device(12 * kMiB);
  options.iterations = 3;
  const ReplayResult result = replay(trace_of("a,1,10485760,0\na,2,10485760,0\nf,1\n"), options);
  EXPECT_EQ(result.ooms, 3u);
  EXPECT_EQ(result.first_oom_event, 1u);
}

TEST(Iterations, CountTheFailuresOfAll) {
  ReplayOptions options = on_device(38 * kMiB);
  options.iterations = 3;
  const ReplayResult result = replay(trace_of(kBetterTheFirstTime), options);
  EXPECT_EQ(result.ooms, 2u);
  EXPECT_EQ(result.first_oom_event, 2u);
}

TEST(Iterations, WriteTheStepsOfTheFirst) {
  const TemporaryFile once;
  const TemporaryFile thrice;
  ReplayOptions options;
  options.steps_path = once.path();
  replay(trace_of(kTwoBlocks), options);
  options.steps_path = thrice.path();
  options.iterations = 3;
  replay(trace_of(kTwoBlocks), options);
  EXPECT_NE(read_whole(once.path()), "");
  EXPECT_EQ(read_whole(thrice.path()), read_whole(once.path()));
}

// Moves between streams buy memory, until none is needed (decision 0140).
TEST(Iterations, OfAProgramWithSeveralStreamsEndWithoutCallsForMemory) {
  const Trace trace = read_trace(kTraces + "programs/prefetching.csv.gz");
  ReplayOptions options;
  options.iterations = 8;
  options.config = "heap:pages";
  EXPECT_EQ(replay(trace, options).memory_calls_per_iteration.back(), 0u);
  options.config = "heap:pages,remap_slack:0";
  EXPECT_GT(replay(trace, options).memory_calls_per_iteration.back(), 0u);
}

TEST(LateAllocations, AreTheLaterHalfAndCountWhereTheyMadeMemoryCalls) {
  // Five allocations, so three are late: one from the cache, one with a new segment, one that fails and is counted.
  const std::string text = "a,1,10485760,0\na,2,512,0\nf,1\na,3,10485760,0\na,4,4194304,0\nf,2\na,5,41943040,0\n";
  const ReplayResult result = replay(trace_of(text), on_device(32 * kMiB));
  EXPECT_EQ(result.ooms, 1u);
  EXPECT_EQ(result.late_allocations, 3u);
  EXPECT_EQ(result.late_driver_allocations, 2u);
}

TEST(LateAllocations, CountTheOnlyOne) {
  const ReplayResult result = replay(trace_of("a,1,512,0\nf,1\n"), {});
  EXPECT_EQ(result.late_allocations, 1u);
  EXPECT_EQ(result.late_driver_allocations, 1u);
}

TEST(LateAllocations, AreNotBlamedForCallsOfEarlierOnes) {
  const ReplayResult result = replay(trace_of("a,1,512,0\na,2,512,0\n"), {});
  EXPECT_EQ(result.late_allocations, 1u);
  EXPECT_EQ(result.late_driver_allocations, 0u);
}

TEST(Replay, TakesEachOptionOfTheAllocatorTheGuardToo) {
  for (const char* config : {"guard:True", "debug:True", "debug:True,guard:False,heap:pages"}) {
    ReplayOptions options;
    options.config = config;
    const ReplayResult result = replay(trace_of(kTwoBlocks), options);
    EXPECT_EQ(result.ooms, 0u) << config;
    EXPECT_GE(result.peak_reserved_bytes, 6 * kMiB) << config;
  }
}

TEST(MinDevice, IsWhatLivesAtOnceWhereNothingIsLost) {
  EXPECT_EQ(find_min_device(trace_of("a,1,10485760,0\n"), {}), 10 * kMiB);
  EXPECT_EQ(find_min_device(trace_of("a,1,0,0\n"), {}), 2 * kMiB);
}

TEST(MinDevice, OfManagedMemoryHasAllOfIt) {
  ReplayOptions options;
  options.config = "heap:managed";
  EXPECT_EQ(find_min_device(trace_of(kTwoBlocks), options), 22 * kMiB);
  options.device_bytes = 4 * kMiB;
  EXPECT_EQ(replay(trace_of(kTwoBlocks), options).ooms, 0u) << "the rest lies on the host";
}

TEST(MinDevice, CountsWholeSegments) { EXPECT_EQ(find_min_device(trace_of(kTwoBlocks), {}), 22 * kMiB); }

TEST(MinDevice, CompletesTheTraceAndHardlyAnySmallerOneWasTried) {
  const Trace trace = read_trace(kTraces + "gpt2_varlen.csv.gz");
  int tries = 0;
  const std::size_t found = find_min_device(trace, {}, [&] { ++tries; }).value();
  EXPECT_TRUE(completes(trace, {}, found));
  EXPECT_GE(found, peak_live_bytes(trace));
  EXPECT_LE(found, replay(trace, {}).peak_reserved_bytes);
  EXPECT_LE(tries, 16);
}

TEST(MinDevice, DoesNotDependOnTheDeviceAskedFor) {
  const Trace trace = read_trace(kTraces + "lsm.csv.gz");
  ReplayOptions options = on_device(2 * kMiB);
  options.find_min_device = true;
  const ReplayResult result = replay(trace, options);
  EXPECT_GT(result.ooms, 0u);
  EXPECT_EQ(result.min_device_bytes, find_min_device(trace, {}));
  EXPECT_NE(result.min_device_bytes, std::nullopt);
}

TEST(MinDevice, IsAbsentWhereNoDeviceIsLargeEnough) {
  ReplayOptions options;
  options.memory_fraction = 0;
  EXPECT_EQ(find_min_device(trace_of(kTwoBlocks), options), std::nullopt);
}

TEST(Steps, AreOneLineAnEventInTheGoldenFormat) {
  const TemporaryFile steps;
  ReplayOptions options = on_device(22 * kMiB);
  options.steps_path = steps.path();
  replay(trace_of(kTwoBlocks + "a,3,31457280,0\nf,3\na,4,0,0\nf,1\na,5,512,0\n"), options);
  EXPECT_EQ(read_whole(steps.path()),
            "0 0 0 2097152 1024 1024 2096128\n"
            "1 1 0 23068672 3147264 3147264 19921408\n"
            "2 oom\n"
            "3 - - 23068672 3147264 3147264 19921408\n"
            "4 - - 23068672 3147264 3147264 19921408\n"
            "5 - - 23068672 3146240 3146240 17825280\n"
            "6 0 0 23068672 3146752 3146752 19921920\n");
}

TEST(Steps, NumberSegmentsByTheirCreationEvenAfterSomeAreGone) {
  const TemporaryFile steps;
  ReplayOptions options = on_device(20 * kMiB);
  options.steps_path = steps.path();
  replay(trace_of("a,1,20971520,0\nf,1\na,2,512,0\na,3,512,0\n"), options);
  EXPECT_EQ(read_whole(steps.path()),
            "0 0 0 20971520 20971520 20971520 0\n"
            "1 - - 20971520 0 0 0\n"
            "2 1 0 2097152 512 512 2096640\n"
            "3 1 512 2097152 1024 1024 2096128\n");
}

TEST(Steps, ThatCannotBeWrittenAreAnErrorThatNamesTheFile) {
  ReplayOptions options;
  options.steps_path = "/nowhere/steps.txt";
  EXPECT_EQ(complaint_about_replay(trace_of(kTwoBlocks), options),
            "--steps /nowhere/steps.txt: cannot write the file: No such file or directory");
}

TEST(Steps, ThatFillTheDiskAreAnError) {
  if (!std::filesystem::exists("/dev/full")) GTEST_SKIP() << "no /dev/full here";
  ReplayOptions options;
  options.steps_path = "/dev/full";
  EXPECT_EQ(complaint_about_replay(trace_of(kTwoBlocks), options),
            "--steps /dev/full: cannot write the file: No space left on device");
}

TEST(Steps, OfThePageHeapAreRefusedBeforeThereIsAFile) {
  const TemporaryFile directory;
  std::filesystem::create_directory(directory.path());
  ReplayOptions options;
  options.steps_path = directory.path() + "/steps.txt";
  for (const char* config : {"heap:pages", "expandable_segments:True"}) {
    options.config = config;
    EXPECT_EQ(complaint_about_replay(trace_of(kTwoBlocks), options),
              "--steps " + options.steps_path +
                  ": steps number segments, and the page heap (heap:pages, expandable_segments:True) has none");
    EXPECT_TRUE(std::filesystem::is_empty(directory.path()));
  }
}

TEST(Steps, LeaveNothingBehindAndTheOldFileWholeWhenTheReplayFails) {
  const TemporaryFile directory;
  std::filesystem::create_directory(directory.path());
  const std::string file = directory.path() + "/steps.txt";
  std::ofstream(file) << "old";
  ReplayOptions options = on_device(kMiB);
  options.steps_path = file;
  EXPECT_NE(complaint_about_replay(trace_of(kTwoBlocks), options), "");
  EXPECT_EQ(read_whole(file), "old");
  const auto files = std::filesystem::directory_iterator(directory.path());
  EXPECT_EQ(std::distance(begin(files), end(files)), 1);
}

}  // namespace
}  // namespace cachalot::tools
