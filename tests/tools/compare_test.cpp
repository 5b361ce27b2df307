#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>

#include "base/bytes.h"
#include "tests/tools/data_files.h"
#include "tests/tools/run_command.h"
#include "tests/tools/temporary_file.h"
#include "tools/replay/comparison.h"

namespace cachalot::tools {
namespace {

using testing::HasSubstr;

Outcome compare(const std::string& arguments) {
  return run_command(fmt::format("'{}' compare {}", CACHALOT_COMMAND, arguments));
}

Comparison figures(std::size_t native, std::size_t expandable, std::size_t pages) {
  Comparison one;
  one.trace = "some/where/moe.csv.gz";
  one.events = 1000;
  one.peak_requested_bytes = 100 * kMiB;
  one.figures = {{{.peak_held_bytes = native * kMiB, .ns_per_event = 40},
                  {.peak_held_bytes = expandable * kMiB},
                  {.peak_held_bytes = pages * kMiB, .ns_per_event = 50}}};
  return one;
}

TEST(Conclusion, IsComputedFromTheFigures) {
  EXPECT_EQ(conclusion({figures(200, 120, 100)}),
            "On this trace the page heap holds 50.0 % less memory than PyTorch's policy and 16.7 % less memory than "
            "expandable segments, at 50 ns of host time per event instead of 40 ns.");
  EXPECT_EQ(conclusion({figures(200, 100, 100), figures(100, 50, 80)}),
            "On these 2 traces together the page heap holds 40.0 % less memory than PyTorch's policy and 20.0 % more "
            "memory than expandable segments, at 50 ns of host time per event instead of 40 ns.");
  EXPECT_THAT(conclusion({figures(100, 100, 100)}), HasSubstr("holds as much memory as PyTorch's policy and"));
}

TEST(Comparison, TellsOfAllocationsThatFail) {
  Comparison one = figures(200, 100, 100);
  EXPECT_EQ(text_of(report_of(std::vector{one}), Style()).find("failed"), std::string::npos);
  one.figures[index_of(Policy::Heap::expandable_segments)].ooms = 3;
  EXPECT_THAT(text_of(report_of(std::vector{one}), Style()),
              HasSubstr("moe: allocations that failed on this device: 0 with PyTorch's policy, 3 with expandable "
                        "segments, 0 with the page heap\n"));
}

TEST(Compare, PrintsOneLineForEachTraceAndOneForAll) {
  const Outcome outcome = compare(kTraces + "lsm.csv.gz " + kTraces + "moe.csv.gz");
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("\nlsm          10,585        223        244   1.094        244   1.094 "));
  EXPECT_THAT(outcome.out, HasSubstr("\nmoe          44,794      12310      16312   1.325      12416   1.009 "));
  EXPECT_THAT(outcome.out, HasSubstr("\ntogether     55,379 "));
  EXPECT_THAT(outcome.out, HasSubstr("\nOn these 2 traces together the page heap holds "));
}

TEST(Compare, WritesAJsonObjectALine) {
  const Outcome outcome = compare("--json " + kTraces + "lsm.csv.gz " + kTraces + "frag_toy.csv.gz");
  EXPECT_EQ(std::ranges::count(outcome.out, '\n'), 2);
  const auto json = nlohmann::json::parse(outcome.out.substr(0, outcome.out.find('\n')));
  EXPECT_EQ(json.at("trace"), kTraces + "lsm.csv.gz");
  EXPECT_EQ(json.at("events"), 10585);
  EXPECT_EQ(json.at("pytorch").at("peak_held_bytes"), 244 * kMiB);
  EXPECT_EQ(json.at("pytorch_expandable_segments").at("peak_held_bytes"), 244 * kMiB);
  EXPECT_TRUE(json.at("pytorch_expandable_segments").at("ns_per_event").is_null());
  EXPECT_GT(json.at("page_heap").at("ns_per_event"), 0.0);
  EXPECT_LT(json.at("page_heap").at("ratio"), json.at("pytorch").at("ratio"));
}

TEST(Compare, TakesSnapshotsAndTheSizeOfTheDevice) {
  EXPECT_EQ(compare("--gpu t4 " CACHALOT_DATA_DIR "/snapshots/layers.pickle").exit_code, 0);
  const Outcome scarce = compare("--device-memory 2500MB " + kTraces + "frag_toy.csv.gz");
  EXPECT_THAT(scarce.out, HasSubstr("122 with expandable segments"));
  const Outcome both = compare("--gpu t4 --device-memory 4G " + kTraces + "lsm.csv.gz");
  EXPECT_EQ(both.err, "cachalot: --gpu t4 and --device-memory 4G both say how large the device is: give one\n");
}

}  // namespace
}  // namespace cachalot::tools
