// Limits that a program's memory must keep.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "tests/analysis/history_builder.h"
#include "tests/tools/data_files.h"
#include "tools/analysis/checks.h"

namespace cachalot::tools {
namespace {

using testing::HasSubstr;

constexpr std::uint64_t kMiB = 1 << 20;

// Returns whether the rule holds, which is the only one.
bool holds(const History& history, const CheckLimits& limits, const CheckPolicy& policy = {}) {
  const Check check = check_history(Timelines(history), limits, policy);
  EXPECT_EQ(check.devices.at(0).rules.size(), 1u);
  return check.holds();
}

std::string complaint(const History& history, const CheckLimits& limits) {
  try {
    check_history(Timelines(history), limits, {});
    return "";
  } catch (const InvalidArgument& error) {
    return error.what();
  }
}

TEST(Checks, EachLimitIsTheLastFigureThatHolds) {
  const History history = read_history(kLayers);
  const CheckedFigures figures = check_history(Timelines(history), {.no_oom = true}, {}).devices.at(0).figures;
  EXPECT_TRUE(holds(history, {.most_peak_bytes = figures.peak_bytes}));
  EXPECT_FALSE(holds(history, {.most_peak_bytes = figures.peak_bytes - 1}));
  EXPECT_TRUE(holds(history, {.most_reserved_bytes = figures.reserved_bytes}));
  EXPECT_FALSE(holds(history, {.most_reserved_bytes = figures.reserved_bytes - 1}));
  EXPECT_EQ(figures.reserved_bytes, 36 * kMiB);
  EXPECT_TRUE(holds(history, {.most_allocations = figures.allocations}));
  EXPECT_FALSE(holds(history, {.most_allocations = figures.allocations - 1}));
  EXPECT_TRUE(holds(history, {.most_fragmentation = figures.fragmentation}));
  EXPECT_FALSE(holds(history, {.most_fragmentation = figures.fragmentation - 0.001}));
}

TEST(Checks, WithoutAHistoryPeaksAndFailuresAreNotKnown) {
  HistoryBuilder builder;
  builder.segment(0x1000000, {{.bytes = kMiB, .requested_bytes = kMiB, .state = HistoryBlock::State::allocated}});
  EXPECT_NE(complaint(builder.history(), {.no_oom = true}).find("has no history"), std::string::npos);
  EXPECT_NE(complaint(builder.history(), {.most_peak_bytes = kMiB}).find("has no history"), std::string::npos);
  EXPECT_TRUE(holds(builder.history(), {.most_reserved_bytes = 2 * kMiB}));
}

TEST(Checks, AFailedAllocationBreaksNoOom) {
  HistoryBuilder builder;
  builder.alloc(0x1000, 512);
  EXPECT_TRUE(holds(builder.history(), {.no_oom = true}));
  builder.add(HistoryEvent::Action::oom, 0, 1 << 30);
  EXPECT_FALSE(holds(builder.history(), {.no_oom = true}));
}

TEST(Checks, APolicyIsReplayed) {
  HistoryBuilder builder;
  for (std::uint64_t i = 0; i < 8; ++i) builder.alloc(0x1000000 * (i + 1), 3 * kMiB);
  const History& history = builder.history();
  for (const char* policy :
       {"native", "expandable", "expandable_segments:True", "pages", "heap:segments,max_split_size_mb:32"}) {
    EXPECT_TRUE(holds(history, {.most_reserved_bytes = 64 * kMiB}, {.name = policy})) << policy;
    EXPECT_FALSE(holds(history, {.most_reserved_bytes = 23 * kMiB}, {.name = policy})) << policy;
    EXPECT_FALSE(holds(history, {.no_oom = true}, {.name = policy, .device_bytes = 16 * kMiB})) << policy;
  }
  EXPECT_THROW(check_history(Timelines(history), {.no_oom = true}, {.name = "no_such_option:1"}), InvalidArgument);
}

TEST(Checks, ARequestThatFailedIsReplayedUnderAPolicy) {
  HistoryBuilder builder;
  builder.alloc(0x1000000, 3 * kMiB);
  builder.add(HistoryEvent::Action::oom, 0, 64 * kMiB);
  for (const char* policy : {"native", "expandable", "pages"}) {
    EXPECT_FALSE(holds(builder.history(), {.no_oom = true}, {.name = policy, .device_bytes = 48 * kMiB})) << policy;
    EXPECT_TRUE(holds(builder.history(), {.no_oom = true}, {.name = policy, .device_bytes = 256 * kMiB})) << policy;
    EXPECT_FALSE(holds(builder.history(), {.most_peak_bytes = 8 * kMiB}, {.name = policy})) << policy;
  }
}

TEST(Checks, OfReservedMemoryNeedAFileThatTellsOfIt) {
  HistoryBuilder builder;
  builder.alloc(0x1000, 512);
  EXPECT_THAT(complaint(builder.history(), {.most_reserved_bytes = 1}), HasSubstr("--policy"));
  EXPECT_THAT(complaint(builder.history(), {.most_fragmentation = 0.5}), HasSubstr("--policy"));
  EXPECT_THAT(complaint(builder.history(), {}), HasSubstr("no limit"));
}

TEST(Leaks, AreTheRiseOfTheLowestLevel) {
  HistoryBuilder steady;
  HistoryBuilder leaking;
  for (std::uint64_t i = 0; i < 30; ++i) {
    for (HistoryBuilder* program : {&steady, &leaking}) {
      program->alloc(0x100000, 9000);  // comes and goes
      program->free(0x100000, 9000);
    }
    leaking.alloc(0x200000 + 0x1000 * i, 100);
  }
  EXPECT_TRUE(holds(steady.history(), {.most_leak = LeakLimit{.bytes = 0, .stage = ""}}));
  EXPECT_TRUE(holds(leaking.history(), {.most_leak = LeakLimit{.bytes = 1000, .stage = ""}}));
  EXPECT_FALSE(holds(leaking.history(), {.most_leak = LeakLimit{.bytes = 999, .stage = ""}}));
  EXPECT_THAT(complaint(HistoryBuilder().history(), {.most_leak = LeakLimit{}}), HasSubstr("0 events"));
}

// The first steps make what stays.
TEST(Leaks, OfAStageAreTheGrowthFromOneBeginToTheNext) {
  HistoryBuilder program;
  for (std::uint64_t step = 0; step < 10; ++step) {
    program.stage("ProfilerStep#" + std::to_string(step), true);
    program.alloc(0x1000 * (step + 1), step < 4 ? 5000 : 10);
    program.stage("ProfilerStep#" + std::to_string(step), false);
  }
  EXPECT_TRUE(holds(program.history(), {.most_leak = LeakLimit{.bytes = 10, .stage = "ProfilerStep*"}}));
  EXPECT_FALSE(holds(program.history(), {.most_leak = LeakLimit{.bytes = 9, .stage = "ProfilerStep*"}}));
  EXPECT_THAT(complaint(program.history(), {.most_leak = LeakLimit{.bytes = 9, .stage = "epoch"}}),
              HasSubstr("'epoch' begins 0 times in the history, less than 3 times; it has 10 annotations, such as "));
}

}  // namespace
}  // namespace cachalot::tools
