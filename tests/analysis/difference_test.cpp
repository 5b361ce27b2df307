// Tests of the growth between two runs, and of the matching lines of two programs.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <vector>

#include "tests/analysis/history_builder.h"
#include "tests/tools/data_files.h"
#include "tools/analysis/difference.h"

namespace cachalot::tools {
namespace {

using testing::ElementsAre;
using testing::Pair;
using Call = HistoryBuilder::Call;

Difference compare(HistoryBuilder& a, HistoryBuilder& b, const DifferenceOptions& options = {}) {
  return difference_of(Timelines(a.history()), Timelines(b.history()), built_in_rules(), options);
}
const DifferenceList& list_of(const Difference& difference, const std::string& name) {
  const auto& lists = difference.devices.at(0).lists;
  return *std::ranges::find(lists, name, &DifferenceList::name);
}

// ---- frames

// Returns which line of `b` each line of `a` is, or 0.
std::map<std::uint32_t, std::uint32_t> matched_lines(const std::vector<Call>& a, const std::vector<Call>& b) {
  HistoryBuilder one;
  HistoryBuilder other;
  one.stack(a);
  other.stack(b);
  const auto all = [](HistoryBuilder& builder) {
    std::vector<FrameId> frames(builder.history().stacks.frame_count());
    for (FrameId i = 0; i < frames.size(); ++i) frames[i] = i;
    return frames;
  };
  const FrameMatching matching(one.history(), all(one), other.history(), all(other));
  std::map<std::uint32_t, std::uint32_t> lines;
  for (const FrameId frame : all(one)) {
    const auto in_b = matching.in_b(frame);
    lines[one.history().stacks.frame(frame).line] = in_b ? other.history().stacks.frame(*in_b).line : 0;
  }
  return lines;
}

TEST(FrameMatching, LinesMoveTogetherInsideTheirFunction) {
  EXPECT_THAT(matched_lines({{"m.py", "f", 10}, {"m.py", "f", 12}, {"m.py", "g", 30}},
                            {{"m.py", "f", 13}, {"m.py", "f", 15}, {"m.py", "g", 30}}),
              ElementsAre(Pair(10, 13), Pair(12, 15), Pair(30, 30)));
}

TEST(FrameMatching, ALineThatStaysBeatsOneThatMoves) {
  EXPECT_THAT(matched_lines({{"m.py", "f", 10}}, {{"m.py", "f", 10}, {"m.py", "f", 15}}), ElementsAre(Pair(10, 10)));
}

// A line was added between 11 and 12: two stay, the others are paired in their order.
TEST(FrameMatching, WhatLiesBetweenTwoLinesIsPairedInOrder) {
  EXPECT_THAT(matched_lines({{"m.py", "f", 10}, {"m.py", "f", 11}, {"m.py", "f", 12}, {"m.py", "f", 20}},
                            {{"m.py", "f", 10}, {"m.py", "f", 11}, {"m.py", "f", 13}, {"m.py", "f", 20}}),
              ElementsAre(Pair(10, 10), Pair(11, 11), Pair(12, 13), Pair(20, 20)));
}

TEST(FrameMatching, NewCodeHasNoPartner) {
  EXPECT_THAT(matched_lines({{"m.py", "f", 10}, {"m.py", "old", 20}}, {{"m.py", "f", 10}, {"m.py", "new", 20}}),
              ElementsAre(Pair(10, 10), Pair(20, 0)));
}

TEST(FrameMatching, TheLongestCommonEndOfPathsTellsWhichFileItIs) {
  EXPECT_THAT(matched_lines({{"/home/a/gpt/model.py", "f", 1}, {"/home/a/vit/model.py", "f", 2}},
                            {{"/ci/7/vit/model.py", "f", 12}, {"/ci/7/gpt/model.py", "f", 11}}),
              ElementsAre(Pair(1, 11), Pair(2, 12)));
}

TEST(FrameMatching, TheSamePathIsTheSameFile) {
  EXPECT_THAT(matched_lines({{"/a/x/model.py", "f", 1}}, {{"/b/x/model.py", "f", 2}, {"/a/x/model.py", "f", 3}}),
              ElementsAre(Pair(1, 3)));
}

TEST(FrameMatching, ManyPairsAreNotTried) {
  std::vector<Call> calls;
  std::vector<std::string> files;
  for (int i = 0; i < 3000; ++i) files.push_back("/" + std::to_string(i) + "/model.py");
  for (const std::string& file : files) calls.push_back({file, "f", 1});
  std::vector<Call> others = calls;
  for (Call& call : others) call.file = call.file.substr(1);
  EXPECT_THAT(matched_lines(calls, calls), ElementsAre(Pair(1, 1)));
  EXPECT_THAT(matched_lines(calls, others), ElementsAre(Pair(1, 0)));
}

// ---- rows

// One line grows, one is gone, one new; all has moved by two lines, to another folder.
TEST(Differences, SayWhatGrewWhereCodeHasMoved) {
  HistoryBuilder before;
  before.alloc(0x10000, 4096, before.stack({{"/home/me/model.py", "forward", 10}, {"/home/me/train.py", "main", 5}}));
  before.alloc(0x20000, 512, before.stack({{"/home/me/train.py", "gone", 90}}));
  HistoryBuilder after;
  const StackId grown = after.stack({{"/ci/model.py", "forward", 12}, {"/ci/train.py", "main", 5}});
  after.alloc(0x10000, 4096, grown);
  after.alloc(0x20000, 8192, grown);
  after.alloc(0x30000, 1024, after.stack({{"/ci/train.py", "fresh", 95}}));

  const Difference difference = compare(before, after);
  const std::vector<DifferenceRow>& rows = list_of(difference, "line").rows;
  ASSERT_EQ(rows.size(), 3u);
  EXPECT_EQ(rows[0].name, "ci/model.py:12 in forward");
  EXPECT_EQ(rows[0].was, "me/model.py:10 in forward");
  EXPECT_STREQ(rows[0].change(), "grown");
  EXPECT_EQ(rows[0].bytes.growth(), 8192);
  EXPECT_EQ(rows[0].count.b, 2u);
  EXPECT_STREQ(rows[1].change(), "new");
  EXPECT_EQ(rows[1].name, "ci/train.py:95 in fresh");
  EXPECT_STREQ(rows[2].change(), "gone");
  EXPECT_EQ(rows[2].bytes.growth(), -512);
  EXPECT_EQ(difference.devices[0].growth(), 8192 + 1024 - 512);
}

// The programs are random, with pools, stages and code that moves, at each moment.
TEST(Differences, OfEachListAddUpToTheDifferenceOfThePeaks) {
  std::mt19937 random(7);
  const auto draw = [&](std::uint32_t below) { return static_cast<std::uint32_t>(random() % below); };
  for (int round = 0; round < 30; ++round) {
    HistoryBuilder runs[2];
    for (HistoryBuilder& run : runs) {
      const auto pool = run.history().pools.add({2, draw(3)});
      for (std::uint64_t i = 0; i < 200; ++i) {
        if (i % 40 == 0) run.stage("step " + std::to_string(i / 40), true);
        const std::string function = "f" + std::to_string(draw(3));
        run.alloc(0x10000 + 0x1000 * draw(60), 1 + draw(4000),
                  draw(5) == 0 ? 0 : run.stack({{"/app/a.py", function, draw(20)}, {"/app/b.py", "forward", draw(9)}}));
        if (draw(4) == 0) run.device().events.back().pool = pool;
        if (draw(2) == 0) run.free(0x10000 + 0x1000 * draw(60), 1);
        if (i % 40 == 39) run.stage("step " + std::to_string(i / 40), false);
      }
      run.add(HistoryEvent::Action::oom, 0, 1 << 30);
    }
    for (const char* at : {"peak", "end", "oom", "100", "0"}) {
      const Difference difference = compare(runs[0], runs[1], {.at = at});
      const DeviceDifference& device = difference.devices.at(0);
      for (const DifferenceList& list : device.lists) {
        std::uint64_t a = 0;
        std::uint64_t b = 0;
        for (const DifferenceRow& row : list.rows) {
          a += row.bytes.a;
          b += row.bytes.b;
        }
        EXPECT_EQ(a, device.moment[0].requested_bytes) << list.name << " at " << at;
        EXPECT_EQ(b, device.moment[1].requested_bytes) << list.name << " at " << at;
      }
    }
  }
}

TEST(Differences, OfARunWithItselfAreNone) {
  const Timelines run(read_history(kLayers));
  const Difference difference = difference_of(run, run, built_in_rules(), {});
  EXPECT_EQ(difference.devices.at(0).growth(), 0);
  for (const DifferenceList& list : difference.devices[0].lists) {
    for (const DifferenceRow& row : list.rows) EXPECT_STREQ(row.change(), "same") << row.name;
  }
  for (const DifferencePart& part : difference.devices[0].parts) EXPECT_EQ(part.peak_bytes.growth(), 0);
}

TEST(Differences, OfRanksCompareTheirOneDevice) {
  HistoryBuilder rank0;
  HistoryBuilder rank1;
  rank0.alloc(0x1000, 512);
  rank1.alloc(0x1000, 2048);
  rank1.device().device = 1;
  const Difference difference = compare(rank0, rank1);
  ASSERT_EQ(difference.devices.size(), 1u);
  EXPECT_EQ(difference.devices[0].device[0], 0);
  EXPECT_EQ(difference.devices[0].device[1], 1);
  EXPECT_EQ(difference.devices[0].growth(), 1536);
}

TEST(Differences, HaveDevicesThatOneRunLacks) {
  HistoryBuilder one;
  HistoryBuilder two;
  one.alloc(0x1000, 512);
  two.alloc(0x1000, 512);
  two.history().devices.push_back(two.device());
  two.history().devices[1].device = 3;
  const Difference difference = compare(one, two);
  ASSERT_EQ(difference.devices.size(), 2u);
  EXPECT_EQ(difference.devices[1].device[0], std::nullopt);
  EXPECT_EQ(difference.devices[1].growth(), 512);
  EXPECT_NE(text_of(report_of(difference, 10), Style()).find("lacks the device"), std::string::npos);
}

// ---- time

TEST(DifferencesInTime, ArePartsOfTheEvents) {
  HistoryBuilder one;
  HistoryBuilder two;
  for (std::uint64_t i = 0; i < 10; ++i) one.alloc(0x1000 * (i + 1), 1);
  for (std::uint64_t i = 0; i < 20; ++i) two.alloc(0x1000 * (i + 1), 1);
  const Difference difference = compare(one, two, {.parts = 2});
  const auto& parts = difference.devices.at(0).parts;
  ASSERT_EQ(parts.size(), 2u);
  EXPECT_EQ(difference.devices[0].aligned_by, "events");
  EXPECT_EQ(parts[1].begin, 0.5);
  EXPECT_EQ(parts[0].peak_bytes.growth(), 5);  // the begin of the second part does not belong to the first
  EXPECT_EQ(parts[1].peak_bytes.growth(), 10);
}

TEST(DifferencesInTime, AreAlignedByTheBeginsOfAStage) {
  HistoryBuilder runs[2];
  for (const int run : {0, 1}) {
    for (std::uint64_t step = 0; step < 3; ++step) {
      runs[run].stage("ProfilerStep#" + std::to_string(step + static_cast<unsigned>(run)), true);
      for (int i = 0; i < 5 + 20 * run; ++i) {
        runs[run].alloc(0x1000, 100 * (step + 1));
        runs[run].free(0x1000, 100 * (step + 1));
      }
      runs[run].stage("ProfilerStep#" + std::to_string(step + static_cast<unsigned>(run)), false);
    }
  }
  const Difference difference = compare(runs[0], runs[1]);
  EXPECT_EQ(difference.devices.at(0).aligned_by, "ProfilerStep#*");
  ASSERT_EQ(difference.devices[0].parts.size(), 3u);
  for (std::size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(difference.devices[0].parts[i].peak_bytes.a, 100 * (i + 1));
    EXPECT_EQ(difference.devices[0].parts[i].peak_bytes.b, 100 * (i + 1));
  }
}

TEST(DifferencesInTime, PutStagesTogetherWhereThereAreMany) {
  HistoryBuilder run;
  for (std::uint64_t step = 0; step < 100; ++step) {
    run.stage("step " + std::to_string(step), true);
    run.alloc(0x1000, step + 1);
    run.free(0x1000, step + 1);
    run.stage("step " + std::to_string(step), false);
  }
  const Difference difference = compare(run, run, {.parts = 4});
  const auto& parts = difference.devices.at(0).parts;
  ASSERT_EQ(parts.size(), 4u);
  EXPECT_EQ(parts[1].begin, 25);
  EXPECT_EQ(parts[1].end, 50);
  EXPECT_EQ(parts[1].peak_bytes.a, 50);
  EXPECT_NE(text_of(report_of(difference, 1), Style()).find("numbers 26 to 50"), std::string::npos);
}

TEST(DifferencesInTime, NamesWithoutNumbers) {
  EXPECT_EQ(without_numbers("step 12 > layer3.0"), "step * > layer*.*");
  EXPECT_EQ(without_numbers(""), "");
}

// ---- reports

TEST(DifferenceReports, KeepTheSumOfWhatIsNotShown) {
  HistoryBuilder one;
  HistoryBuilder two;
  for (std::uint32_t i = 1; i < 8; ++i) {
    two.alloc(0x1000 * i, 100 * i, two.stack({{"/app/a.py", "f", i}}));
    one.alloc(0x1000 * i, 7, one.stack({{"/app/a.py", "f", i}}));
  }
  const Difference difference = compare(one, two);
  const Json json = json_of(report_of(difference, 2));
  const auto& lines = json["devices"][0]["by_line"];
  ASSERT_EQ(lines["rows"].size(), 2u);
  EXPECT_EQ(lines["rows"][0]["name"], "app/a.py:7 in f");
  EXPECT_EQ(lines["others"]["rows"], 5);
  std::int64_t sum = lines["others"]["growth_bytes"];
  for (const auto& row : lines["rows"]) sum += row["growth_bytes"].get<std::int64_t>();
  EXPECT_EQ(json["growth_bytes"], sum);
  EXPECT_EQ(sum, difference.devices[0].growth());
  EXPECT_NE(text_of(report_of(difference, 2), Style()).find("(5 more)"), std::string::npos);
}

}  // namespace
}  // namespace cachalot::tools
