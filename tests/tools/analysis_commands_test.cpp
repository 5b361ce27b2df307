// `cachalot convert`, `diff`, `check` and `explain` as their users run them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>

#include "tests/tools/data_files.h"
#include "tests/tools/run_command.h"
#include "tests/tools/temporary_file.h"

namespace cachalot::tools {
namespace {

using testing::HasSubstr;
using testing::StartsWith;

Outcome run_cachalot(const std::string& arguments) { return run_command("'" CACHALOT_COMMAND "' " + arguments); }

// One line on standard error, nothing on standard output, exit code 2.
std::string complaint_of_run(const std::string& arguments) {
  const Outcome outcome = run_cachalot(arguments);
  EXPECT_EQ(outcome.exit_code, 2) << arguments;
  EXPECT_EQ(outcome.out, "") << arguments;
  EXPECT_EQ(std::ranges::count(outcome.err, '\n'), 1) << outcome.err;
  return outcome.err;
}

class OutputFolder : public TemporaryFile {
 public:
  OutputFolder() { std::filesystem::create_directory(path()); }
  std::string file(const std::string& name) const { return path() + "/" + name; }
  std::size_t count() const {
    return static_cast<std::size_t>(std::distance(std::filesystem::directory_iterator(path()), {}));
  }
};

// ---- convert

TEST(Convert, WritesWhatTheEndingOfTheFileSays) {
  const OutputFolder folder;
  EXPECT_EQ(run_cachalot("convert " + kLayers + " -o " + folder.file("a.json")).exit_code, 0);
  EXPECT_EQ(nlohmann::json::parse(read_whole(folder.file("a.json")))["format"], "cachalot history");
  EXPECT_EQ(run_cachalot("convert " + kLayers + " -o " + folder.file("a.perfetto.json.gz")).exit_code, 0);
  EXPECT_TRUE(nlohmann::json::parse(read_gzip(folder.file("a.perfetto.json.gz"))).contains("traceEvents"));
  EXPECT_EQ(run_cachalot("convert " + kLayers + " -o " + folder.file("a.rmm.csv")).exit_code, 0);
  EXPECT_THAT(read_whole(folder.file("a.rmm.csv")), StartsWith("Thread,Time,Action,Pointer,Size,Stream\n"));
  EXPECT_EQ(folder.count(), 3u);
}

TEST(Convert, WritesToAPipe) {
  const Outcome outcome = run_cachalot("convert " + kLayers + " --to trace -o - | cat");
  EXPECT_EQ(outcome.exit_code, 0);
  EXPECT_THAT(outcome.out, StartsWith("a,1,"));
  const OutputFolder folder;
  std::ofstream(folder.file("again.trace")) << outcome.out;
  EXPECT_EQ(run_cachalot("replay " + folder.file("again.trace")).exit_code, 0);
}

TEST(Convert, OfAConvertedSnapshotSaysTheSame) {
  const OutputFolder folder;
  ASSERT_EQ(run_cachalot("convert " + kLayers + " -o " + folder.file("a.pickle")).exit_code, 0);
  auto one = nlohmann::json::parse(run_cachalot("snapshot --json " + kLayers).out);
  auto other = nlohmann::json::parse(run_cachalot("snapshot --json " + folder.file("a.pickle")).out);
  one.erase("snapshot");
  other.erase("snapshot");
  EXPECT_EQ(one, other);
}

TEST(Convert, LeavesNothingBehindAfterAnError) {
  const OutputFolder folder;
  const std::string out = folder.file("out.json");
  EXPECT_THAT(complaint_of_run("convert /nowhere.pickle -o " + out), HasSubstr("/nowhere.pickle"));
  EXPECT_THAT(complaint_of_run("convert " + kLayers + " -o " + out + " --device 5"), HasSubstr("no device 5"));
  EXPECT_THAT(complaint_of_run("convert " + kLayers + " -o " + folder.file("out.tiff")), HasSubstr("out.tiff"));
  EXPECT_THAT(complaint_of_run("convert " + kLayers + " --to perfeto -o " + out), HasSubstr("did you mean 'perfetto'"));
  EXPECT_THAT(complaint_of_run("convert " + kLayers + " -o /nowhere/out.json"), HasSubstr("/nowhere/out.json"));
  EXPECT_THAT(complaint_of_run("convert " + kLayers), HasSubstr("no output was given"));
  EXPECT_EQ(folder.count(), 0u);
}

// ---- diff

TEST(Diff, ComparesEachFileWithTheFirst) {
  const Outcome outcome = run_cachalot("diff --json " + kLayers + " " + kLayers + " " + kLayers);
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_EQ(std::ranges::count(outcome.out, '\n'), 2);
}

TEST(Diff, SaysThatNothingHasGrown) {
  const Outcome outcome = run_cachalot("diff " + kLayers + " " + kLayers);
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("growth of the requested memory: 0 bytes"));
  EXPECT_THAT(outcome.out, HasSubstr("layers.py:34 in train"));
}

TEST(Diff, RefusesWhatItCannotCompare) {
  EXPECT_THAT(complaint_of_run("diff " + kLayers), HasSubstr("two files"));
  EXPECT_THAT(complaint_of_run("diff --at noon " + kLayers + " " + kLayers), HasSubstr("'noon'"));
  EXPECT_THAT(complaint_of_run("diff --frames mine " + kLayers + " " + kLayers), HasSubstr("mine"));
  EXPECT_THAT(complaint_of_run("diff --rules /nowhere " + kLayers + " " + kLayers), HasSubstr("/nowhere"));
}

// ---- check

TEST(CheckCommand, HasTheExitCodeOfTheLimits) {
  EXPECT_EQ(run_cachalot("check --max-reserved 36MiB --no-oom " + kLayers).exit_code, 0);
  const Outcome broken = run_cachalot("check --max-reserved 35MiB --no-oom " + kLayers);
  EXPECT_EQ(broken.exit_code, 1);
  EXPECT_THAT(broken.out,
              StartsWith("BROKEN  " + kLayers + ": device 0: --max-reserved 35.00 MiB: 36.00 MiB\nok      " + kLayers +
                         ": device 0: --no-oom 0: 0\nnote    " + kLayers + ": device 0: the history begins with "));
}

TEST(CheckCommand, SpeaksToGitHub) {
  const Outcome broken = run_cachalot("check --github --no-oom --max-fragmentation 0% " + kLayers);
  EXPECT_EQ(broken.exit_code, 1);
  EXPECT_THAT(broken.out, StartsWith("::error title=cachalot check::" + kLayers + ": device 0: "));
  EXPECT_THAT(broken.out, HasSubstr(" %25, where --max-fragmentation allows 0.00 %25\n"));
  EXPECT_EQ(std::ranges::count(broken.out, '\n'), 1);
}

TEST(CheckCommand, PrintsJson) {
  const Outcome outcome = run_cachalot("check --json --max-peak 1MiB --policy pages " + kLayers);
  EXPECT_EQ(outcome.exit_code, 1);
  const auto json = nlohmann::json::parse(outcome.out);
  EXPECT_EQ(json["holds"], false);
  EXPECT_EQ(json["policy"], "pages");
  EXPECT_EQ(json["devices"][0]["rules"][0]["rule"], "max_peak");
  EXPECT_EQ(json["devices"][0]["rules"][0]["limit"], 1 << 20);
  EXPECT_EQ(json["devices"][0]["rules"][0]["figure"], json["devices"][0]["peak_bytes"]);
}

TEST(CheckCommand, RefusesLimitsThatAreNone) {
  EXPECT_THAT(complaint_of_run("check " + kLayers), HasSubstr("no limit"));
  EXPECT_THAT(complaint_of_run("check --max-peak much " + kLayers), HasSubstr("--max-peak"));
  for (const char* part : {"5", "-1%", "101%", "x", "", "%"}) {
    EXPECT_THAT(complaint_of_run("check --max-fragmentation '" + std::string(part) + "' " + kLayers),
                HasSubstr("--max-fragmentation"));
  }
  EXPECT_THAT(complaint_of_run("check --max-leak 1MiB/ " + kLayers), HasSubstr("--max-leak"));
  EXPECT_THAT(complaint_of_run("check --max-leak 1MiB/epoch " + kLayers), HasSubstr("'epoch'"));
  EXPECT_THAT(complaint_of_run("check --gpu l4 --no-oom " + kLayers), HasSubstr("--policy"));
  EXPECT_THAT(complaint_of_run("check --policy pgaes --no-oom " + kLayers), HasSubstr("pgaes"));
}

// ---- explain

TEST(ExplainCommand, WritesTheWholeReportAsTextBesideTheJson) {
  const OutputFolder folder;
  const Outcome json = run_cachalot("explain --json --top 0 --text " + folder.file("a.txt") + " " + kLayers);
  EXPECT_EQ(json.exit_code, 0) << json.err;
  EXPECT_TRUE(nlohmann::json::parse(json.out)["devices"][0]["lines"].empty());
  EXPECT_EQ(read_whole(folder.file("a.txt")), run_cachalot("explain --top 1000 " + kLayers).out);
  EXPECT_THAT(complaint_of_run("explain --text " + kLayers + " " + kLayers), HasSubstr("--text"));
  EXPECT_THAT(complaint_of_run("explain --text " + folder.file("no/a.txt") + " " + kLayers), HasSubstr("--text"));
}

TEST(ExplainCommand, ReportsOneDevice) {
  EXPECT_EQ(run_cachalot("explain --device 0 " + kLayers).out, run_cachalot("explain " + kLayers).out);
  EXPECT_THAT(complaint_of_run("explain --device 3 " + kLayers), HasSubstr("the history has no device 3"));
  EXPECT_THAT(complaint_of_run("explain --device -1 " + kLayers), HasSubstr("--device"));
}

TEST(HelpAsJson, HasEveryCommandAndOption) {
  std::istringstream lines(run_cachalot("help --json").out);
  bool has_check = false;
  for (std::string line; std::getline(lines, line);) {
    const auto json = nlohmann::json::parse(line);
    if (json["name"] != "check") continue;
    has_check = true;
    EXPECT_EQ(json["options"][0]["value"], "FILE");
    EXPECT_EQ(json["options"][0]["is_required"], true);
    EXPECT_EQ(json["options"][0]["is_repeated"], true);
    EXPECT_EQ(json, nlohmann::json::parse(run_cachalot("help --json check").out));
  }
  EXPECT_TRUE(has_check);
}

}  // namespace
}  // namespace cachalot::tools
