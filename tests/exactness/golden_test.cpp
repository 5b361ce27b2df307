// Tests that the allocator's decisions on the shipped traces are those of PyTorch 2.11's own allocator: the same
// segment, the same offset, the same statistics after every event. data/golden/README.md says how the files were made.
#include <gtest/gtest.h>

#include <filesystem>
#include <optional>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "tests/tools/temporary_file.h"
#include "tools/replay/replay.h"
#include "tools/replay/trace_reader.h"

namespace cachalot::tools {
namespace {

const std::string kData = CACHALOT_DATA_DIR;

// A row of the table in data/golden/README.md.
struct GoldenCase {
  std::string trace;
  std::string name;
  std::size_t device_mib = 200000;
  std::string config = "";
  std::optional<double> memory_fraction = {};

  std::string file() const { return trace + "." + name + ".txt.gz"; }
};

const std::vector<GoldenCase> kCases = {
    {"frag_toy", "default"},
    {"gpt2_varlen", "default"},
    {"lsm", "default"},
    {"moe", "default"},
    {"resnet_multires", "default"},
    {"streams", "default"},
    {"moe", "cap13500", 13500},
    {"moe", "cap12000", 12000},
    {"streams", "cap2400", 2400},
    {"frag_toy", "cap3300", 3300},
    {"gpt2_varlen", "cap10400", 10400},
    {"moe", "limit13000", 26000, "", 0.5},
    {"moe", "round4", 200000, "roundup_power2_divisions:4"},
    {"frag_toy", "roundlist", 200000, "roundup_power2_divisions:[64:8,256:4,>:1]"},
    {"gpt2_varlen", "roundlist", 200000, "roundup_power2_divisions:[2:8,64:4,256:2,>:1]"},
    {"frag_toy", "segment32", 200000, "large_segment_size_mb:32"},
    {"frag_toy", "nonsplit40", 3400, "max_split_size_mb:24,max_non_split_rounding_mb:40"},
    {"streams", "split32cap2600", 2600, "max_split_size_mb:32"},
    {"frag_toy", "split32", 200000, "max_split_size_mb:32"},
    {"frag_toy", "split32cap3300", 3300, "max_split_size_mb:32"},
    {"moe", "gc", 20000, "garbage_collection_threshold:0.8,max_split_size_mb:64", 0.8},
    {"gpt2_varlen", "gc", 16000, "garbage_collection_threshold:0.6", 0.7},
};

std::string steps_of(const GoldenCase& golden) {
  const TemporaryFile steps;
  ReplayOptions options;
  options.config = golden.config;
  options.device_bytes = golden.device_mib * kMiB;
  options.memory_fraction = golden.memory_fraction;
  options.steps_path = steps.path();
  replay(read_trace(kData + "/traces/" + golden.trace + ".csv.gz"), options);
  return read_whole(steps.path());
}

class Golden : public testing::TestWithParam<GoldenCase> {};

TEST_P(Golden, MatchesAtEveryEvent) {
  std::istringstream expected(read_gzip(kData + "/golden/" + GetParam().file()));
  std::istringstream actual(steps_of(GetParam()));
  std::string expected_line;
  std::string actual_line;
  std::size_t lines = 0;
  std::size_t differences = 0;
  std::string first_difference;
  while (std::getline(expected, expected_line)) {
    ++lines;
    if (!std::getline(actual, actual_line)) actual_line = "(no line)";
    if (actual_line == expected_line) continue;
    if (differences++ == 0) first_difference = "expected " + expected_line + "\n  actual " + actual_line;
  }
  EXPECT_EQ(differences, 0u) << "of " << lines << " lines; the first:\n" << first_difference;
  EXPECT_GT(lines, 0u);
  EXPECT_FALSE(std::getline(actual, actual_line)) << "more lines than expected, the first: " << actual_line;
}

INSTANTIATE_TEST_SUITE_P(Torch, Golden, testing::ValuesIn(kCases),
                         [](const auto& param) { return param.param.trace + "_" + param.param.name; });

TEST(GoldenCases, AreAllTheFilesThatShip) {
  std::set<std::string> files;
  for (const auto& entry : std::filesystem::directory_iterator(kData + "/golden")) {
    if (entry.path().extension() == ".gz") files.insert(entry.path().filename().string());
  }
  std::set<std::string> cases;
  for (const GoldenCase& golden : kCases) cases.insert(golden.file());
  EXPECT_EQ(cases, files);
}

}  // namespace
}  // namespace cachalot::tools
