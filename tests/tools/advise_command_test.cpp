// `cachalot advise` as its users run it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>

#include "base/bytes.h"
#include "tests/tools/data_files.h"
#include "tests/tools/run_command.h"
#include "tests/tools/temporary_file.h"

namespace cachalot::tools {
namespace {

using testing::HasSubstr;
using testing::StartsWith;

Outcome advise(const std::string& arguments) {
  return run_command(std::string("'") + CACHALOT_COMMAND + "' advise " + arguments);
}

const std::string kToy = kTraces + "frag_toy.csv.gz";

TEST(Advise, PrintsATableAndARecommendation) {
  const Outcome outcome = advise("--gpu t4 --gpu l4 " + kToy);
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("smallest GPU"));
  EXPECT_THAT(outcome.out, HasSubstr("  t4  l4  to set\n"));
  EXPECT_THAT(outcome.out, HasSubstr("python -m cachalot run --config heap:pages\n"));
  EXPECT_THAT(outcome.out, HasSubstr("(PyTorch's default)\n"));
  EXPECT_THAT(outcome.out, HasSubstr("\nSet "));
}

TEST(Advise, HasRowsForFilesThatCannotBeRead) {
  const Outcome outcome = advise("--json --no-times /nowhere/file " + kToy);
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_EQ(std::ranges::count(outcome.out, '\n'), 2);
  const auto failed = nlohmann::json::parse(outcome.out.substr(0, outcome.out.find('\n')));
  EXPECT_EQ(failed.at("file"), "/nowhere/file");
  EXPECT_THAT(failed.at("error").get<std::string>(), HasSubstr("No such file"));
  const auto read = nlohmann::json::parse(outcome.out.substr(outcome.out.find('\n') + 1));
  EXPECT_EQ(read.at("file"), kToy);
  EXPECT_TRUE(read.at("policies").at(0).at("ns_per_event").is_null());
}

// PyTorch's JSON of six segments, each with a live block and a free rest, and of one event of a history.
std::string snapshot_with_one_event() {
  nlohmann::json segments = nlohmann::json::array();
  for (std::size_t i = 0; i < 6; ++i) {
    const std::size_t at = 0x7f0000000000 + i * 64 * kMiB;
    const auto block = [](std::size_t address, std::size_t bytes, const char* state) {
      return nlohmann::json{{"address", address}, {"size", bytes}, {"requested_size", bytes}, {"state", state}};
    };
    segments.push_back(
        {{"device", 0},
         {"address", at},
         {"total_size", 20 * kMiB},
         {"stream", 0},
         {"segment_type", "large"},
         {"blocks", {block(at, 9 * kMiB, "active_allocated"), block(at + 9 * kMiB, 11 * kMiB, "inactive")}}});
  }
  const nlohmann::json event = {{"action", "free_completed"}, {"addr", 4096}, {"size", 8}, {"stream", 0}};
  return nlohmann::json{{"segments", segments}, {"device_traces", {{event}}}}.dump();
}

TEST(Advise, SaysNothingOfAHistoryThatTellsNothing) {
  const TemporaryFile file(snapshot_with_one_event());
  const Outcome outcome = advise("--no-times " + file.path());
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("No advice: the history has 1 event, and "));
  EXPECT_EQ(outcome.out.find("Set "), std::string::npos) << outcome.out;
}

// A log has no segments: how much memory the device had is not known.
TEST(Advise, TakesARmmLogOfAProgramThatRanOutOfMemory) {
  const TemporaryFile log;
  const std::string snapshot = std::string(CACHALOT_DATA_DIR) + "/snapshots/torch-2.11/fragmented.pickle.gz";
  const Outcome converted =
      run_command(std::string("'") + CACHALOT_COMMAND + "' convert --to rmm -o " + log.path() + " " + snapshot);
  ASSERT_EQ(converted.exit_code, 0) << converted.err;
  const Outcome outcome = advise("--no-times " + log.path());
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
}

TEST(Advise, TellsWhatIsWrongInOneLine) {
  const auto refusal = [](const std::string& arguments) {
    const Outcome outcome = advise(arguments);
    EXPECT_EQ(outcome.exit_code, 2) << arguments;
    EXPECT_EQ(std::ranges::count(outcome.err, '\n'), 1) << outcome.err;
    return outcome.err;
  };
  EXPECT_THAT(refusal(""), HasSubstr("neither a file nor a program was given"));
  EXPECT_THAT(refusal(kToy + " -- true"), HasSubstr("give one of the two"));
  EXPECT_THAT(refusal("/nowhere/file"), HasSubstr("/nowhere/file"));
  EXPECT_THAT(refusal("--gpu t44 " + kToy), HasSubstr("t44"));
  EXPECT_THAT(refusal("--context x " + kToy), HasSubstr("--context"));
  EXPECT_THAT(refusal("--top 0 " + kToy), HasSubstr("--top"));
  EXPECT_THAT(refusal("--send-files " + kToy), HasSubstr("--send-files needs --scheduler"));
  EXPECT_THAT(refusal("--scheduler tcp://127.0.0.1:1 -- true"), HasSubstr("takes files, and no program"));
  EXPECT_THAT(refusal("--max-steps 3 " + kToy), HasSubstr("need a program"));
}

TEST(Advise, TakesOptionsBehindFiles) {
  const Outcome outcome = advise(kToy + " --json --no-times --sweep --top 2");
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_LE(nlohmann::json::parse(outcome.out).at("policies").size(), 3U);
}

}  // namespace
}  // namespace cachalot::tools
