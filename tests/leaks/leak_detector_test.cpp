#include "cachalot/leak_detector.h"

#include <gtest/gtest.h>

#include <deque>
#include <memory>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "cachalot/guard.h"
#include "cachalot/simulated_device.h"

// Outside of cachalot's namespace, as users' functions are: the library leaves its own frames out.
namespace user {

using cachalot::AllocationTrack;
using cachalot::AllocatorGuard;
using cachalot::CachingAllocator;
using cachalot::Leak;
using cachalot::LeakDetector;
using cachalot::LeakDetectorOptions;
using cachalot::LeakReport;
using cachalot::SimulatedDevice;
using cachalot::TrackReport;

constexpr std::size_t kKiB = 1024;

class World {
 public:
  explicit World(std::string_view options = "")
      : allocator({device}, cachalot::parse_options(options), cachalot::guard_factory()) {}
  ~World() {
    EXPECT_EQ(allocator.validate(), "");
    for (void* block : kept) allocator.deallocate(block);
    EXPECT_EQ(allocator.memory_allocated(), AllocatorGuard(allocator).quarantine_bytes());
  }

  const std::shared_ptr<SimulatedDevice> device = std::make_shared<SimulatedDevice>();
  CachingAllocator allocator;
  std::vector<void*> kept;
};

// Three places to allocate at, which must not be made one by the compiler.
[[gnu::noinline]] void keep_a_loss(World& world) { world.kept.push_back(world.allocator.allocate(4)); }
[[gnu::noinline]] void keep_an_activation(World& world) { world.kept.push_back(world.allocator.allocate(64 * kKiB)); }
[[gnu::noinline]] void use_for_a_moment(World& world) {
  world.allocator.deallocate(world.allocator.allocate(128 * kKiB));
}

std::vector<std::string> functions(const cachalot::CallStack& stack) {
  std::vector<std::string> names;
  for (const cachalot::CallFrame& frame : stack.frames()) names.push_back(frame.function);
  return names;
}

// The innermost function of the user's.
std::string place(const cachalot::AllocationSite& site) {
  const std::vector<std::string> names = functions(site.stack);
  return names.empty() ? "" : names.front();
}

testing::AssertionResult is_at(const cachalot::AllocationSite& site, const std::string& function) {
  if (!cachalot::has_debug_information_reader()) return testing::AssertionSuccess() << "no names in this build";
  if (place(site).find(function) != std::string::npos) return testing::AssertionSuccess();
  return testing::AssertionFailure() << to_string(site);
}

class LeakDetectorOnEveryHeap : public testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(, LeakDetectorOnEveryHeap,
                         testing::Values("", "heap:pages", "guard:True", "heap:pages,guard:True"));

TEST_P(LeakDetectorOnEveryHeap, NamesTheSiteThatGrowsAndNoOther) {
  World world(GetParam());
  LeakDetector detector(world.allocator);
  for (int iteration = 0; iteration < 20; ++iteration) {
    keep_an_activation(world);
    use_for_a_moment(world);
    detector.step();
  }
  const std::vector<Leak> leaks = detector.leaks();
  ASSERT_EQ(leaks.size(), 1u) << to_string(detector.report());
  EXPECT_TRUE(is_at(leaks[0].site, "keep_an_activation"));
  EXPECT_EQ(leaks[0].site.live_blocks, 20u);
  EXPECT_GE(leaks[0].bytes_per_iteration, 64.0 * kKiB);
  EXPECT_LE(leaks[0].bytes_per_iteration, 66.0 * kKiB) << "with the guard a block is 1 KiB larger at most";
  EXPECT_EQ(leaks[0].site.oldest_iterations, 20u);
  EXPECT_GE(leaks[0].confidence, 0.999);
  EXPECT_EQ(leaks[0].iterations, 18u) << "two are warm-up";
  EXPECT_EQ(leaks[0].site.some_addresses.size(), 20u);
  EXPECT_EQ(leaks[0].site.some_addresses.front(), reinterpret_cast<cachalot::Address>(world.kept.back()));
}

TEST(LeakDetector, PutsTheSteepestFirstAndBoundsTheList) {
  World world;
  LeakDetector detector(world.allocator);
  for (int iteration = 0; iteration < 12; ++iteration) {
    keep_a_loss(world);
    keep_an_activation(world);
    detector.step();
  }
  const std::vector<Leak> leaks = detector.leaks();
  ASSERT_EQ(leaks.size(), 2u);
  EXPECT_TRUE(is_at(leaks[0].site, "keep_an_activation"));
  EXPECT_TRUE(is_at(leaks[1].site, "keep_a_loss"));
  EXPECT_DOUBLE_EQ(leaks[1].bytes_per_iteration, 512) << "the block of 4 bytes";

  const LeakReport bounded = detector.report(1);
  EXPECT_EQ(bounded.leaks.size(), 1u);
  EXPECT_EQ(bounded.sites.size(), 1u);
  EXPECT_EQ(bounded.leak_count, 2u);
  EXPECT_NE(to_string(bounded).find("and 1 more"), std::string::npos) << to_string(bounded);
}

TEST(LeakDetector, FindsNothingWhereAllIsGivenBackOrConstant) {
  World world;
  LeakDetector detector(world.allocator);
  keep_an_activation(world);
  for (int iteration = 0; iteration < 40; ++iteration) {
    use_for_a_moment(world);
    detector.step();
  }
  EXPECT_TRUE(detector.leaks().empty()) << to_string(detector.report());
  EXPECT_EQ(detector.report().live_blocks, 1u);
  EXPECT_EQ(detector.report().site_count, 1u) << "the other site is forgotten";
}

// Each request is larger than all segments before it.
TEST(LeakDetector, TellsOfReservedMemoryThatGrowsIdle) {
  for (const std::size_t growth : {std::size_t{0}, std::size_t{2}}) {
    World world;
    LeakDetector detector(world.allocator);
    for (std::size_t iteration = 0; iteration < 20; ++iteration) {
      world.allocator.deallocate(world.allocator.allocate((20 + growth * iteration) * 1024 * kKiB));
      detector.step();
    }
    const LeakReport report = detector.report();
    EXPECT_EQ(report.leak_count, 0u);
    EXPECT_EQ(report.idle_bytes, world.allocator.memory_reserved());
    EXPECT_EQ(report.idle_bytes_per_iteration > 20 * 1024 * kKiB, growth != 0) << to_string(report);
    EXPECT_EQ(to_string(report).find("of reserved memory that lies idle") != std::string::npos, growth != 0);
  }
}

// The program does not mark the end of an iteration: samples are taken by allocations, over the whole run.
TEST_P(LeakDetectorOnEveryHeap, JudgesByAllocationsWhereNoStepIsMade) {
  World world(GetParam());
  std::size_t samples = 0;
  LeakDetectorOptions options;
  options.on_sample = [&] { ++samples; };
  LeakDetector detector(world.allocator, options);
  for (int i = 0; i < 3000; ++i) {
    use_for_a_moment(world);
    if (i % 3 == 0) keep_an_activation(world);
  }
  const std::vector<Leak> leaks = detector.leaks();
  ASSERT_EQ(leaks.size(), 1u) << to_string(detector.report());
  EXPECT_TRUE(is_at(leaks[0].site, "keep_an_activation"));
  EXPECT_EQ(leaks[0].sample_allocations, 64u) << "64 samples of 4,000 allocations, and at least half as many";
  EXPECT_NEAR(leaks[0].bytes_per_iteration, 64.0 / 4 * 64 * kKiB, 0.1 * 64 / 4 * 64 * kKiB);
  EXPECT_GE(leaks[0].iterations, 32u);
  EXPECT_LE(leaks[0].iterations, 64u);
  EXPECT_GT(samples, 64u + 5 * 24);
  EXPECT_LT(samples, 64u + 6 * 40);
  EXPECT_NE(to_string(leaks[0]).find(" every 64 allocations "), std::string::npos) << to_string(leaks[0]);

  EXPECT_EQ(detector.report().sample_allocations, 64u);
}

// A program makes some steps, and then it serves: what it keeps then is found, and nothing before.
TEST(LeakDetector, JudgesByAllocationsAfterTheLastStepAndWhereStepsAreFew) {
  for (const int steps : {3, 30}) {
    World world;
    LeakDetector detector(world.allocator);
    for (int step = 0; step < steps; ++step) {
      for (int i = 0; i < 10; ++i) use_for_a_moment(world);
      detector.step();
    }
    EXPECT_TRUE(detector.leaks().empty()) << to_string(detector.report());
    for (int i = 0; i < 200; ++i) {
      use_for_a_moment(world);
      keep_an_activation(world);
    }
    const std::vector<Leak> leaks = detector.leaks();
    ASSERT_EQ(leaks.size(), 1u) << steps << to_string(detector.report());
    EXPECT_TRUE(is_at(leaks[0].site, "keep_an_activation"));
    EXPECT_GT(leaks[0].sample_allocations, 0u);
    for (int step = 0; step < 12; ++step) {
      use_for_a_moment(world);
      detector.step();
    }
    EXPECT_TRUE(detector.leaks().empty()) << "it grows no longer\n" << to_string(detector.report());
  }
}

// It trains, and then it serves: what grew while it trained is a leak, however long it serves.
TEST(LeakDetector, JudgesByIterationsHoweverLongTheProgramGoesOnAfterThem) {
  World world;
  LeakDetector detector(world.allocator);
  for (int step = 0; step < 30; ++step) {
    for (int i = 0; i < 10; ++i) use_for_a_moment(world);
    keep_a_loss(world);
    detector.step();
  }
  for (int i = 0; i < 2000; ++i) use_for_a_moment(world);
  const std::vector<Leak> leaks = detector.leaks();
  ASSERT_EQ(leaks.size(), 1u) << to_string(detector.report());
  EXPECT_TRUE(is_at(leaks[0].site, "keep_a_loss"));
  EXPECT_EQ(leaks[0].sample_allocations, 0u);
  EXPECT_DOUBLE_EQ(leaks[0].bytes_per_iteration, 512);
  for (int i = 0; i < 6000; ++i) keep_an_activation(world);
  EXPECT_EQ(detector.leaks().size(), 2u) << "by the allocations since, too\n" << to_string(detector.report());
}

// Once in an epoch of 100 iterations something is kept: the newest 64 do not show it. A cache that is full does not
// leak.
TEST(LeakDetector, FindsGrowthFromEpochToEpochOverTheWholeRun) {
  for (const int last_epoch : {9, 6}) {
    World world;
    LeakDetector detector(world.allocator);
    for (int step = 0; step < 950; ++step) {
      use_for_a_moment(world);
      if (step % 100 == 99 && step / 100 < last_epoch) keep_a_loss(world);
      detector.step();
    }
    const std::vector<Leak> leaks = detector.leaks();
    ASSERT_EQ(leaks.size(), last_epoch == 9 ? 1u : 0u) << to_string(detector.report());
    if (leaks.empty()) continue;
    EXPECT_EQ(leaks[0].sample_allocations, 0u);
    EXPECT_NEAR(leaks[0].bytes_per_iteration, 5.12, 1);
  }
}

// Loading grows and ends; an iteration of 50 allocations rises and falls, whatever of it the samples hit.
TEST(LeakDetector, TakesNeitherLoadingNorIterationsForLeaksWhereNoStepIsMade) {
  World world;
  LeakDetector detector(world.allocator);
  for (int i = 0; i < 100; ++i) keep_a_loss(world);
  for (int iteration = 0; iteration < 40; ++iteration) {
    for (int i = 0; i < 50; ++i) keep_an_activation(world);
    for (int i = 0; i < 50; ++i) {
      world.allocator.deallocate(world.kept.back());
      world.kept.pop_back();
    }
    if (iteration < 5) continue;  // so far the loading is a good part of it
    ASSERT_TRUE(detector.leaks().empty()) << iteration << to_string(detector.report());
  }
}

TEST(LeakDetector, TellsOfIdleMemoryThatGrowsWhereNoStepIsMade) {
  World world;
  LeakDetector detector(world.allocator);
  for (std::size_t i = 0; i < 30; ++i) world.allocator.deallocate(world.allocator.allocate((20 + 2 * i) * 1024 * kKiB));
  const LeakReport report = detector.report();
  EXPECT_EQ(report.leak_count, 0u) << to_string(report);
  EXPECT_GT(report.idle_bytes_per_iteration, 20.0 * 1024 * kKiB) << to_string(report);
}

TEST(LeakDetector, DoesNotTakeSitesThatSwingForLeaks) {
  const unsigned seed = 11;
  SCOPED_TRACE(seed);
  std::mt19937 random(seed);
  World world;
  LeakDetector detector(world.allocator);
  std::deque<void*> recent;  // a replay buffer: full after five iterations
  std::vector<void*> batch;  // of another size each time
  for (int iteration = 0; iteration < 100; ++iteration) {
    recent.push_back(world.allocator.allocate(32 * kKiB));
    if (recent.size() > 5) {
      world.allocator.deallocate(recent.front());
      recent.pop_front();
    }
    for (void* block : batch) world.allocator.deallocate(block);
    batch.clear();
    for (auto i = random() % 10; i > 0; --i) batch.push_back(world.allocator.allocate(kKiB * (1 + random() % 64)));
    detector.step();
    EXPECT_TRUE(iteration <= 20 || detector.leaks().empty()) << iteration << "\n" << to_string(detector.report());
  }
  for (void* block : recent) world.allocator.deallocate(block);
  for (void* block : batch) world.allocator.deallocate(block);
}

TEST(LeakDetector, FindsALeakThatBeginsLate) {
  World world;
  LeakDetector detector(world.allocator);
  for (int iteration = 0; iteration < 100; ++iteration) {
    use_for_a_moment(world);
    if (iteration >= 80) keep_a_loss(world);
    detector.step();
  }
  ASSERT_EQ(detector.leaks().size(), 1u);
  EXPECT_DOUBLE_EQ(detector.leaks()[0].bytes_per_iteration, 512);
}

TEST(LeakDetector, NeedsEightIterationsAfterWarmUp) {
  World world;
  LeakDetector detector(world.allocator, {.warm_up = 3});
  for (int iteration = 1; iteration <= 11; ++iteration) {
    keep_a_loss(world);
    detector.step();
    EXPECT_EQ(detector.leaks().size(), iteration < 11 ? 0u : 1u) << iteration;
  }
}

TEST(LeakDetector, ComparesTheIterationsOfItsWindow) {
  World world;
  LeakDetector detector(world.allocator, {.warm_up = 0, .window = 10});
  for (int iteration = 1; iteration <= 20; ++iteration) {
    keep_a_loss(world);
    detector.step();
  }
  ASSERT_EQ(detector.leaks().size(), 1u);
  EXPECT_EQ(detector.leaks().front().iterations, 10u);
}

TEST(LeakDetector, DoesNotCountWhatWasAllocatedBeforeItWasMade) {
  World world;
  void* const before = world.allocator.allocate(kKiB);
  LeakDetector detector(world.allocator);
  world.allocator.deallocate(before);
  EXPECT_EQ(detector.report().live_blocks, 0u);
  EXPECT_EQ(detector.report().live_bytes, 0u);
  keep_a_loss(world);
  EXPECT_EQ(detector.report().live_blocks, 1u);
  EXPECT_EQ(detector.report().live_bytes, 512u);
}

TEST(LeakDetector, SeesAFreeThatWaitsForAnotherStreamAsAFree) {
  World world;
  LeakDetector detector(world.allocator);
  void* const block = world.allocator.allocate(kKiB);
  world.allocator.record_stream(block, world.device->new_stream());
  world.allocator.deallocate(block);
  EXPECT_EQ(detector.report().live_blocks, 0u);
}

TEST(LeakDetector, LeavesHistoryAsItsUserSetIt) {
  World world;
  std::vector<cachalot::Context> contexts;
  cachalot::HistoryOptions history{.max_entries = 100, .contexts = cachalot::HistoryOptions::Contexts::alloc};
  history.recorder = [&] { return contexts.emplace_back(std::make_shared<int>(7)); };
  world.allocator.record_history(history);
  {
    LeakDetector detector(world.allocator);
    keep_a_loss(world);
    EXPECT_EQ(contexts.size(), 1u) << "the recorder is asked once";
    world.allocator.record_history({.enabled = false});
    keep_a_loss(world);
    EXPECT_EQ(contexts.size(), 1u);
    EXPECT_EQ(detector.report().live_blocks, 2u) << "history that ends does not end the watch";
    EXPECT_FALSE(world.allocator.history_enabled());
    history.contexts = cachalot::HistoryOptions::Contexts::never;
    world.allocator.record_history(history);
    keep_a_loss(world);
    EXPECT_EQ(contexts.size(), 1u) << "whoever wants no contexts is not asked for them";
  }
  const auto trace = world.allocator.snapshot().device_traces.at(0);
  ASSERT_FALSE(trace.empty());
  for (const auto& change : trace) EXPECT_EQ(change.context, nullptr);
}

TEST(LeakDetector, OutlivesItsAllocator) {
  std::unique_ptr<LeakDetector> detector;
  {
    World world;
    detector = std::make_unique<LeakDetector>(world.allocator);
    for (int iteration = 0; iteration < 12; ++iteration) {
      keep_a_loss(world);
      detector->step();
    }
    EXPECT_EQ(detector->leaks().size(), 1u);
  }
  EXPECT_EQ(detector->leaks().size(), 0u) << "all was freed";
  const std::vector<Leak> grew = detector->report().leaks;
  ASSERT_EQ(grew.size(), 1u);
  EXPECT_EQ(grew[0].site.live_bytes, 0u);
  EXPECT_EQ(grew[0].highest_blocks, 12u);
  EXPECT_NE(to_string(grew[0]).find("12 blocks when the last iteration ended; now 0 bytes in 0 blocks"),
            std::string::npos);
  detector.reset();
}

TEST(LeakDetector, LeavesThreadCachesOpenWhenItGoes) {
  World world("heap:pages");
  { LeakDetector detector(world.allocator); }
  keep_a_loss(world);
  EXPECT_EQ(LeakDetector(world.allocator).report().live_blocks, 0u);
}

TEST(LeakDetector, RefusesOptionsOutOfTheirRange) {
  World world;
  EXPECT_THROW(LeakDetector(world.allocator, {.window = 7}), cachalot::InvalidArgument);
  EXPECT_THROW(LeakDetector(world.allocator, {.min_confidence = 1}), cachalot::InvalidArgument);
  EXPECT_THROW(LeakDetector(world.allocator, {.min_confidence = 0.4}), cachalot::InvalidArgument);
}

TEST(LeakDetector, WatchesAllThreads) {
  World world;
  LeakDetector detector(world.allocator);
  const auto work = [&world] {
    std::vector<void*> mine;
    for (int i = 0; i < 500; ++i) {
      mine.push_back(world.allocator.allocate(kKiB));
      if (i % 3 == 0) {
        world.allocator.deallocate(mine.back());
        mine.pop_back();
      }
    }
    for (void* block : mine) world.allocator.deallocate(block);
  };
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) threads.emplace_back(work);
  for (int i = 0; i < 20; ++i) {
    detector.step();
    EXPECT_LE(detector.report().live_blocks, 2000u);
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(detector.report().live_blocks, 0u);
  EXPECT_EQ(detector.report().live_bytes, 0u);
}

TEST(LeakDetector, SaysItInTextAndJson) {
  World world;
  LeakDetector detector(world.allocator);
  for (int iteration = 0; iteration < 12; ++iteration) {
    keep_an_activation(world);
    detector.step();
  }
  const LeakReport report = detector.report();
  const std::string text = to_string(report);
  EXPECT_EQ(text.rfind("1 site of 1 grows after 12 iterations; 768.00 KiB in 12 blocks live\n", 0), 0u) << text;
  EXPECT_NE(text.find("+64.00 KiB an iteration (confidence 0.99"), std::string::npos) << text;
  const auto json = nlohmann::json::parse(to_json(report));
  EXPECT_EQ(json["iterations"], 12);
  EXPECT_EQ(json["leaks"].size(), 1u);
  EXPECT_EQ(json["leaks"][0]["live_blocks"], 12);
  EXPECT_EQ(json["leaks"][0]["bytes_per_iteration"], 64.0 * kKiB);
  EXPECT_EQ(json["leaks"][0]["some_addresses"].size(), 12u);
  EXPECT_FALSE(json["leaks"][0]["stack"].empty());
  EXPECT_EQ(json["sites"].size(), 1u);
}

TEST(AllocationTrack, CountsWhatIsAllocatedFreedAndLeft) {
  World world;
  void* const before = world.allocator.allocate(kKiB);
  AllocationTrack track(world.allocator);
  void* const moment = world.allocator.allocate(8 * kKiB);
  world.allocator.deallocate(moment);
  world.allocator.deallocate(before);
  keep_an_activation(world);
  keep_a_loss(world);
  track.stop();
  keep_a_loss(world);

  const TrackReport report = track.report();
  EXPECT_EQ(report.allocated_blocks, 3u);
  EXPECT_EQ(report.allocated_bytes, 8 * kKiB + 64 * kKiB + 512);
  EXPECT_EQ(report.freed_blocks, 2u);
  EXPECT_EQ(report.freed_bytes, 9 * kKiB);
  EXPECT_EQ(report.freed_earlier_blocks, 1u);
  EXPECT_EQ(report.freed_earlier_bytes, kKiB);
  EXPECT_EQ(report.left_blocks, 2u);
  EXPECT_EQ(report.left_bytes, 64 * kKiB + 512);
  EXPECT_EQ(report.peak_bytes, 64 * kKiB + 512 - kKiB) << "what was freed of before makes room";
  ASSERT_EQ(report.sites.size(), 2u);
  EXPECT_TRUE(is_at(report.sites[0], "keep_an_activation"));
  EXPECT_EQ(report.sites[1].live_bytes, 512u);
  EXPECT_EQ(
      to_string(report).rfind("allocated 72.50 KiB in 3 blocks, freed 9.00 KiB in 2 blocks (of those 1024 bytes in 1 "
                              "block from before), left 64.50 KiB in 2 blocks, peak 63.50 KiB\n",
                              0),
      0u)
      << to_string(report);
  EXPECT_EQ(nlohmann::json::parse(to_json(report))["left_blocks"], 2);
}

// Heaps with the guard before them, and without.
class WatchedHeaps : public testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Options, WatchedHeaps,
                         testing::Values("heap:segments", "heap:pages", "guard:True", "heap:pages,guard:True",
                                         "debug:True,guard:False"));

TEST_P(WatchedHeaps, BytesAreThoseOfMemoryAllocated) {
  World world(GetParam());
  const AllocationTrack track(world.allocator);
  keep_a_loss(world);
  keep_an_activation(world);
  EXPECT_EQ(track.report().left_bytes, world.allocator.memory_allocated());
  use_for_a_moment(world);
  EXPECT_EQ(track.report().left_bytes,
            world.allocator.memory_allocated() - AllocatorGuard(world.allocator).quarantine_bytes());
}

TEST_P(WatchedHeaps, WhatACheckpointTakesAwayIsFreed) {
  constexpr cachalot::PoolId kPool = {1, 0};
  constexpr std::size_t kIterations = 12;
  World world(GetParam());
  CachingAllocator& allocator = world.allocator;
  allocator.create_or_retain_pool(0, kPool);
  const cachalot::PoolCheckpoint empty = allocator.checkpoint_pool(0, kPool);
  AllocationTrack track(allocator);
  LeakDetector detector(allocator);
  for (std::size_t i = 1; i <= kIterations; ++i) {
    allocator.begin_allocate_to_pool(
        0, kPool, [](cachalot::Stream) { return true; }, cachalot::RedirectFor::thread);
    for (std::size_t n = 0; n < i; ++n) allocator.allocate(1000);
    allocator.end_allocate_to_pool(0, kPool);
    if (i == kIterations) {  // and what it brings back is there again
      const cachalot::PoolCheckpoint full = allocator.checkpoint_pool(0, kPool);
      allocator.restore_pool(0, empty);
      EXPECT_EQ(allocator.restore_pool(0, full).created.size(), kIterations);
      EXPECT_EQ(track.report().left_blocks, kIterations);
      EXPECT_EQ(track.report().left_bytes, allocator.memory_allocated());
    }
    EXPECT_EQ(allocator.restore_pool(0, empty).freed.size(), i);
    detector.step();
  }
  EXPECT_EQ(track.report().freed_blocks, track.report().allocated_blocks);
  EXPECT_EQ(track.report().left_blocks, 0u);
  EXPECT_EQ(detector.report().leak_count, 0u);
  allocator.release_pool(0, kPool);
}

// A device that refuses has freed nothing; a device that was reset has lost everything.
TEST_P(WatchedHeaps, AFreeThatFailsChangesNothingAndOneThatGivesUpIsAFree) {
  World world(GetParam());
  CachingAllocator& allocator = world.allocator;
  const auto other = world.device->new_stream();
  AllocationTrack track(allocator);
  keep_a_loss(world);
  allocator.record_stream(world.kept[0], other);
  int failed = 0;
  for (std::uint64_t nth = 1; nth <= 3; ++nth) {
    world.device->set_faults({cachalot::Fault{.nth = nth, .out_of_memory = false, .code = 700}});
    try {
      allocator.deallocate(world.kept[0]);
      break;
    } catch (const cachalot::CudaError&) {
      ++failed;
    }
    const TrackReport report = track.report();
    EXPECT_EQ(report.left_blocks, 1u);
    EXPECT_TRUE(is_at(report.sites.at(0), "keep_a_loss"));
  }
  world.device->set_faults({});
  if (failed == 3) allocator.deallocate(world.kept[0]);
  world.kept.clear();
  EXPECT_EQ(track.report().left_blocks, 0u);
  EXPECT_EQ(track.report().allocated_blocks - track.report().freed_blocks, 0u);
  allocator.empty_cache();
}

TEST(AllocationTrack, NestsInAnother) {
  World world;
  AllocationTrack outer(world.allocator);
  keep_a_loss(world);
  {
    AllocationTrack inner(world.allocator);
    keep_a_loss(world);
    EXPECT_EQ(inner.report().allocated_blocks, 1u);
  }
  keep_a_loss(world);
  EXPECT_EQ(outer.report().allocated_blocks, 3u);
  EXPECT_EQ(outer.report().left_blocks, 3u);
}

// A run of free-memory callbacks allocates within an allocation: each has the stack of its own.
TEST(AllocationTrack, KeepsTheStacksOfNestedAllocationsApart) {
  auto device = std::make_shared<SimulatedDevice>();
  CachingAllocator allocator({device});
  std::vector<void*> inner;
  bool is_inside = false;
  allocator.add_free_memory_callback([&] {
    if (is_inside) return false;
    is_inside = true;
    inner.push_back(allocator.allocate(kKiB));
    is_inside = false;
    return false;
  });
  AllocationTrack track(allocator);
  void* const outer = allocator.allocate(std::size_t{30} << 20);
  const TrackReport report = track.report();
  ASSERT_EQ(inner.size(), 1u);
  ASSERT_EQ(report.sites.size(), 2u);
  EXPECT_FALSE(report.sites[0].stack.empty());
  EXPECT_FALSE(report.sites[1].stack.empty());
  EXPECT_FALSE(report.sites[0].stack == report.sites[1].stack);
  allocator.deallocate(outer);
  for (void* block : inner) allocator.deallocate(block);
  EXPECT_EQ(allocator.validate(), "");
}

}  // namespace user
