// The `cachalot` command as its users run it.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "cachalot/version.h"
#include "tests/sanitizers.h"
#include "tests/tools/data_files.h"
#include "tests/tools/run_command.h"
#include "tests/tools/temporary_file.h"

namespace cachalot::tools {
namespace {

const std::string kData = CACHALOT_DATA_DIR;

// Runs `cachalot <arguments>` through the shell, with CACHALOT_CONF as given.
Outcome run(const std::string& arguments, const std::string& environment = "") {
  return run_command("CACHALOT_CONF='" + environment + "' '" + CACHALOT_COMMAND + "' " + arguments);
}

std::string trace(const std::string& name) { return kData + "/traces/" + name + ".csv.gz"; }

nlohmann::json json_of(const std::string& arguments, const std::string& environment = "") {
  const Outcome result = run("replay --json " + arguments, environment);
  EXPECT_EQ(result.exit_code, 0) << result.err;
  return nlohmann::json::parse(result.out);
}

// One line on standard error, nothing on standard output, exit code 2. Returns the message.
std::string complaint_of_command(const std::string& arguments, const std::string& environment = "") {
  const Outcome result = run(arguments, environment);
  EXPECT_EQ(result.exit_code, 2) << arguments;
  EXPECT_EQ(result.out, "") << arguments;
  EXPECT_EQ(std::ranges::count(result.err, '\n'), 1) << result.err;
  EXPECT_EQ(result.err.rfind("cachalot: ", 0), 0u) << result.err;
  return result.err;
}

void expect_contains(const std::string& text, const std::vector<std::string>& parts) {
  for (const std::string& part : parts) EXPECT_NE(text.find(part), std::string::npos) << part << " is not in " << text;
}

TEST(CommandLine, ShowsItsVersion) {
  EXPECT_EQ(run("--version").out, "cachalot " CACHALOT_VERSION_STRING "\n");
  EXPECT_EQ(run("--version").exit_code, 0);
}

// Names of files and words of the command may come from others.
TEST(CommandLine, NoCharacterOfAWordControlsTheTerminal) {
  const TemporaryFile folder;
  std::filesystem::create_directory(folder.path());
  const std::string snapshot = folder.path() + "/s\x1b[2J.pickle";
  const std::string recorded = folder.path() + "/t\x1b[2J.csv.gz";
  std::filesystem::copy(kData + "/snapshots/layers.pickle", snapshot);
  std::filesystem::copy(trace("lsm"), recorded);
  const auto expect_escaped = [](const std::string& arguments) {
    const Outcome result = run(arguments);
    EXPECT_EQ((result.out + result.err).find('\x1b'), std::string::npos) << result.out << result.err;
    EXPECT_NE((result.out + result.err).find("\\x1b[2J"), std::string::npos) << arguments;
  };
  for (const char* command : {"snapshot", "explain", "advise", "check --max-peak 1GiB", "diff"})
    expect_escaped(fmt::format("{} '{}' {}", command, snapshot, command == std::string("diff") ? recorded : ""));
  for (const char* command : {"compare", "replay", "advise", "explain"})
    expect_escaped(fmt::format("{} '{}'", command, recorded));
  for (const char* words : {"explain '\x1b[2J.pickle'", "'\x1b[2J'", "explain '--\x1b[2J'"}) expect_escaped(words);
  if (!std::string(CACHALOT_SIMULATED_PROGRAM).empty()) expect_escaped("simulate -- './\x1b[2J'");
}

TEST(CommandLine, ReportsEveryFigureAsText) {
  const Outcome result = run("replay --min-device " + trace("lsm"));
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(result.err, "");
  expect_contains(result.out, {trace("lsm"), "events                   10,585\n", "peak requested", "peak allocated",
                               "peak reserved", "peak on the device", "reserved / requested     1.09",
                               "internal fragmentation", "external fragmentation", "failed allocations       none\n",
                               "simulated driver time", "host time", "ns per event", "smallest device"});
  for (const char* internal : {"retries", "device calls", "late allocations", "device-wide waits", "live mappings"}) {
    EXPECT_EQ(result.out.find(internal), std::string::npos) << internal;
  }
}

TEST(CommandLine, ReportsItsOwnWorkWhenAskedTo) {
  const Outcome result = run("replay --verbose " + trace("lsm"));
  expect_contains(result.out, {"10 us per allocation", "retries", "device calls", "memory calls", "late allocations",
                               "device-wide waits", "live mappings"});
}

TEST(CommandLine, ReportsTheLagTheHazardsAndTheIterationsAsAskedFor) {
  const std::string asked = "--work-us 2.5 --check-hazards --iterations 3 " + trace("lsm");
  const Outcome result = run("replay -v " + asked);
  EXPECT_EQ(result.exit_code, 0) << result.err;
  expect_contains(result.out, {"2.5 us per allocation", "hazards                  none found",
                               "8 in 3 iterations: 8 in the first, 0 in", " of 2647 in the later half of the trace"});
  const nlohmann::json json = json_of(asked);
  EXPECT_EQ(json["work_us"], 2.5);
  EXPECT_EQ(json["check_hazards"], true);
  EXPECT_EQ(json["memory_calls"], 8);
  EXPECT_EQ(json["memory_calls_per_iteration"], (std::vector<int>{8, 0, 0}));
  EXPECT_EQ(json["late_allocations"], 2647);
  EXPECT_EQ(json["peak_driver_bytes"], json["peak_reserved_bytes"]);
}

TEST(CommandLine, EndsTheTextOfSeveralTracesWithATable) {
  const Outcome result = run("replay " + trace("lsm") + " " + trace("frag_toy"));
  EXPECT_EQ(result.exit_code, 0) << result.err;
  expect_contains(result.out, {"trace ", "\nlsm ", "\nfrag_toy ", "ns/event"});
  EXPECT_EQ(run("replay " + trace("lsm")).out.find("ns/event"), std::string::npos);
}

TEST(CommandLine, WritesAJsonObjectALine) {
  const Outcome result = run("replay --json " + trace("lsm") + " " + trace("frag_toy"));
  EXPECT_EQ(result.exit_code, 0) << result.err;
  std::istringstream lines(result.out);
  std::vector<std::string> traces;
  for (std::string line; std::getline(lines, line);) traces.push_back(nlohmann::json::parse(line).at("trace"));
  EXPECT_EQ(traces, (std::vector<std::string>{trace("lsm"), trace("frag_toy")}));
}

TEST(CommandLine, WritesTheJsonKeysItPromises) {
  const nlohmann::json json = json_of(trace("lsm"));
  std::set<std::string> keys;
  for (const auto& [key, value] : json.items()) keys.insert(key);
  EXPECT_EQ(keys, (std::set<std::string>{"trace",
                                         "events",
                                         "work_us",
                                         "check_hazards",
                                         "failed_requests",
                                         "peak_requested_bytes",
                                         "peak_allocated_bytes",
                                         "peak_reserved_bytes",
                                         "peak_driver_bytes",
                                         "ratio",
                                         "internal_fragmentation",
                                         "external_fragmentation",
                                         "ooms",
                                         "first_oom_event",
                                         "retries",
                                         "device_calls",
                                         "memory_calls",
                                         "memory_calls_per_iteration",
                                         "driver_us_per_iteration",
                                         "ratio_per_iteration",
                                         "late_allocations",
                                         "late_driver_allocations",
                                         "device_wide_synchronizations",
                                         "stream_waits",
                                         "live_mappings",
                                         "driver_us",
                                         "expandable_us",
                                         "ns_per_event"}));
  std::set<std::string> calls;
  for (const auto& [key, value] : json["device_calls"].items()) calls.insert(key);
  EXPECT_EQ(calls,
            (std::set<std::string>{"malloc", "free", "create", "release", "map", "unmap", "set_access", "event_record",
                                   "event_query", "event_synchronize", "stream_wait", "synchronize"}));
  EXPECT_EQ(json["work_us"], 10);
  EXPECT_EQ(json["check_hazards"], false);
  EXPECT_EQ(json["events"], 10585);
  EXPECT_EQ(json["ooms"], 0);
  EXPECT_TRUE(json["first_oom_event"].is_null());
  EXPECT_GT(json["device_calls"]["malloc"], 0);
  EXPECT_GT(json["ns_per_event"], 0.0);
  EXPECT_NEAR(json["ratio"].get<double>(), 1.094, 0.0005);  // PyTorch 2.11's figure on this trace
}

TEST(CommandLine, AddsTheSmallestDeviceToTheJsonWhenAskedTo) {
  const nlohmann::json json = json_of("--min-device " + trace("lsm"));
  EXPECT_GE(json["min_device_bytes"], json["peak_requested_bytes"]);
  EXPECT_LE(json["min_device_bytes"], json["peak_reserved_bytes"]);
  const std::string smallest = std::to_string(json["min_device_bytes"].get<std::size_t>());
  EXPECT_EQ(json_of("--device-memory " + smallest + " " + trace("lsm"))["ooms"], 0);
}

TEST(CommandLine, WritesStepsThatEqualAGoldenFile) {
  const TemporaryFile steps;
  EXPECT_EQ(
      run("replay --device-memory 3300MiB --repeat 2 --steps '" + steps.path() + "' " + trace("frag_toy")).exit_code,
      0);
  EXPECT_TRUE(read_whole(steps.path()) == read_gzip(kData + "/golden/frag_toy.cap3300.txt.gz"));
}

TEST(CommandLine, WritesStepsIntoAPipe) {
  const TemporaryFile one("a,1,512,0\n");
  const TemporaryFile piped;
  const TemporaryFile report;
  run("replay --steps /dev/fd/3 " + one.path() + " 3>&1 >'" + report.path() + "' | cat >'" + piped.path() + "'; true");
  EXPECT_EQ(read_whole(piped.path()), "0 0 0 2097152 512 512 2096640\n");
}

TEST(CommandLine, WritesStepsToWhereALinkLeadsAndKeepsTheLink) {
  const TemporaryFile one("a,1,512,0\n");
  const TemporaryFile target("old");
  const TemporaryFile link;
  std::filesystem::create_symlink(target.path(), link.path());
  EXPECT_EQ(run("replay --steps " + link.path() + " " + one.path()).exit_code, 0);
  EXPECT_TRUE(std::filesystem::is_symlink(link.path()));
  EXPECT_EQ(read_whole(target.path()), "0 0 0 2097152 512 512 2096640\n");
}

TEST(CommandLine, SucceedsWhenAllocationsFail) {
  const nlohmann::json json = json_of("--device-memory 1.5GiB " + trace("frag_toy"));
  EXPECT_GT(json["ooms"], 0);
  EXPECT_TRUE(json["first_oom_event"].is_number());
}

TEST(CommandLine, TakesItsConfigurationFromTheEnvironmentUnlessGivenOne) {
  const TemporaryFile one("a,1,2000000,0\n");
  EXPECT_EQ(json_of(one.path())["peak_reserved_bytes"], 20 << 20);
  EXPECT_EQ(json_of(one.path(), "large_segment_size_mb:32")["peak_reserved_bytes"], 32 << 20);
  EXPECT_EQ(json_of("--config '' " + one.path(), "large_segment_size_mb:32")["peak_reserved_bytes"], 20 << 20);
  EXPECT_EQ(json_of("--config large_segment_size_mb:40 " + one.path(), "nonsense")["peak_reserved_bytes"], 40 << 20);
}

TEST(CommandLine, UnderstandsSizes) {
  const TemporaryFile one("a,1,10485760,0\n");
  for (const char* enough : {"10485760", "10240KiB", "10MiB", "'10 MiB'", "0.5GiB", "10M", "10mb", "1g"}) {
    EXPECT_EQ(json_of(std::string("--device-memory ") + enough + " " + one.path())["ooms"], 0) << enough;
  }
  EXPECT_EQ(json_of("--device-memory 8MiB " + one.path())["ooms"], 1);
}

TEST(CommandLine, RefusesBadOptions) {
  const std::string lsm = trace("lsm");
  expect_contains(complaint_of_command("replay"), {"no TRACE was given (see cachalot replay --help)"});
  expect_contains(complaint_of_command("replay --repeat 0 " + lsm), {"--repeat", "0"});
  expect_contains(complaint_of_command("replay --repeat -1 " + lsm), {"--repeat", "-1"});
  expect_contains(complaint_of_command("replay --repeat many " + lsm), {"--repeat", "many"});
  expect_contains(complaint_of_command("replay --work-us -1 " + lsm), {"--work-us", "-1", "0 to 1000000"});
  expect_contains(complaint_of_command("replay --work-us nan " + lsm), {"--work-us", "nan", "0 to 1000000"});
  expect_contains(complaint_of_command("replay --work-us inf " + lsm), {"--work-us", "inf", "0 to 1000000"});
  expect_contains(complaint_of_command("replay --work-us abc " + lsm), {"--work-us", "abc"});
  expect_contains(complaint_of_command("replay --work-gb-per-s -1 " + lsm),
                  {"--work-gb-per-s -1", "0 or at least 0.001"});
  expect_contains(complaint_of_command("replay --wait-every -1 " + lsm), {"--wait-every", "-1", "0", "1000000000"});
  expect_contains(complaint_of_command("replay --iterations 0 " + lsm), {"--iterations", "0", "1000"});
  expect_contains(complaint_of_command("replay --iterations 1001 " + lsm), {"--iterations", "1001"});
  expect_contains(complaint_of_command("replay --iterations many " + lsm), {"--iterations", "many"});
  expect_contains(complaint_of_command("replay --memory-fraction 1.5 " + lsm), {"--memory-fraction", "1.5"});
  expect_contains(complaint_of_command("replay --memory-fraction -0.5 " + lsm), {"--memory-fraction", "-0.5"});
  expect_contains(complaint_of_command("replay --memory-fraction nan " + lsm), {"--memory-fraction", "nan"});
  expect_contains(complaint_of_command("replay --memory-fraction half " + lsm), {"--memory-fraction", "half"});
}

TEST(CommandLine, RefusesBadSizes) {
  for (const char* size : {"lots", "-1", "10XB", "1e40", "''", "99999999999999999999", "1.5"}) {
    expect_contains(complaint_of_command(std::string("replay --device-memory ") + size + " " + trace("lsm")),
                    {"--device-memory"});
  }
  expect_contains(complaint_of_command("replay --device-memory 1MiB " + trace("lsm")),
                  {"1048576", "smaller than one segment"});
  expect_contains(complaint_of_command("replay --device-memory 0 " + trace("lsm")), {"smaller than one segment"});
}

TEST(CommandLine, RefusesBadConfigurationsAndNamesKeyValueAndRule) {
  const std::string replay = " " + trace("lsm");
  expect_contains(complaint_of_command("replay --config max_split_size_mb:2" + replay),
                  {"max_split_size_mb", "2", "20"});
  expect_contains(complaint_of_command("replay --config frobnicate:1" + replay), {"frobnicate"});
  expect_contains(complaint_of_command("replay" + replay, "garbage_collection_threshold:7"),
                  {"garbage_collection_threshold", "7"});
  expect_contains(complaint_of_command("replay --config heap:tables" + replay), {"heap", "tables"});
  expect_contains(complaint_of_command("replay --config expandable_segments:on" + replay), {"expandable_segments"});
}

TEST(CommandLine, RefusesBadTracesAndNamesFileAndLine) {
  expect_contains(complaint_of_command("replay /nowhere/trace.csv"), {"/nowhere/trace.csv", "No such file"});
  const TemporaryFile negative("a,1,512,0\na,2,-5,0\n");
  expect_contains(complaint_of_command("replay " + negative.path()), {negative.path() + ":2:", "-5", "negative"});
  const std::string whole = read_whole(trace("lsm"));
  const TemporaryFile cut(whole.substr(0, whole.size() / 2));
  expect_contains(complaint_of_command("replay " + cut.path()), {cut.path() + ":", "cut off"});
}

TEST(CommandLine, SaysWhatHoldsTheMemoryInASnapshot) {
  const Outcome text = run("snapshot --top 1 " + kLayers);
  EXPECT_EQ(text.exit_code, 0) << text.err;
  expect_contains(text.out, {kLayers, "36.00 MiB in 4 segments", "layers.py:10 in __init__", "and 2 more lines"});
  const Outcome json = run("snapshot --json " + kLayers + " " + kLayers);
  EXPECT_EQ(json.exit_code, 0) << json.err;
  EXPECT_EQ(std::ranges::count(json.out, '\n'), 2);
  const std::string first = json.out.substr(0, json.out.find('\n'));
  EXPECT_EQ(nlohmann::json::parse(first)["devices"][0]["reserved_bytes"], 36 << 20);
}

TEST(CommandLine, ReplaysTheHistoryOfASnapshot) {
  const nlohmann::json json = json_of("--check-hazards " + kLayers);
  EXPECT_EQ(json["trace"], kLayers);
  EXPECT_EQ(json["events"], 41);
  EXPECT_EQ(json["ooms"], 0);
  const Outcome piped = run("replay /dev/stdin < " + kLayers);
  EXPECT_EQ(piped.exit_code, 0) << piped.err;
}

TEST(CommandLine, SaysThatItLeavesActionsOutThatItDoesNotKnow) {
  const std::string unknown = R"({"action": "from_the_future"})";
  const std::string known = R"({"action": "alloc", "addr": 4096, "size": 512, "stream": 0})";
  const auto history = [](const std::string& entries) {
    return R"({"segments": [], "device_traces": [[)" + entries + "]]}";
  };
  const TemporaryFile mixed(history(unknown + "," + known + "," + unknown));
  const Outcome replayed = run("replay --json " + mixed.path());
  EXPECT_EQ(replayed.exit_code, 0);
  EXPECT_EQ(nlohmann::json::parse(replayed.out)["events"], 1);
  EXPECT_EQ(replayed.err, "cachalot: " + mixed.path() +
                              ": left out of the history: 2 events of an unknown kind, from a newer PyTorch\n");
  const TemporaryFile alone(history(unknown));
  expect_contains(complaint_of_command("replay " + alone.path()),
                  {"no history to replay", "1 event of an unknown kind"});
}

TEST(CommandLine, RefusesSnapshotsThatAreNone) {
  expect_contains(complaint_of_command("snapshot"), {"SNAPSHOT"});
  expect_contains(complaint_of_command("snapshot --top -1 " + kLayers), {"--top", "-1"});
  expect_contains(complaint_of_command("snapshot --top many " + kLayers), {"--top", "many"});
  expect_contains(complaint_of_command("snapshot /nowhere/a.pickle"), {"/nowhere/a.pickle", "No such file"});
  expect_contains(complaint_of_command("snapshot " + kData), {kData + ": is a directory, and no file"});
  expect_contains(complaint_of_command("replay " + kData), {kData + ": is a directory, and no file"});
  expect_contains(complaint_of_command("snapshot " + trace("lsm")), {"is an allocation trace, not a memory snapshot"});
  const TemporaryFile evil("cos\nsystem\n(S'echo owned'\ntR.");
  expect_contains(complaint_of_command("snapshot " + evil.path()), {evil.path(), "has no known format"});
  const TemporaryFile hidden("(cos\nsystem\n(S'echo owned'\ntR.");
  expect_contains(complaint_of_command("snapshot " + hidden.path()),
                  {hidden.path() + ": byte 1: opcode 'c': GLOBAL is refused"});
  expect_contains(complaint_of_command("replay " + hidden.path()),
                  {hidden.path() + ": byte 1: opcode 'c': GLOBAL is refused"});
  const TemporaryFile cut(read_whole(kLayers).substr(0, 3000));
  expect_contains(complaint_of_command("snapshot " + kLayers + " " + cut.path()), {cut.path(), "cut off"});
  const TemporaryFile without_history("[]");
  expect_contains(complaint_of_command("replay " + without_history.path()), {"no history to replay"});
}

// Lines and files of gigabytes, in a few bytes of gzip: refused at the first rule that they break.
TEST(CommandLine, RefusesFilesThatGrowWhenTheyAreRead) {
  const TemporaryFile bomb;
  write_gzip(bomb.path(), "a," + std::string(std::size_t{300} << 20, 'a'));
  expect_contains(complaint_of_command("replay " + bomb.path()), {bomb.path() + ":1:", "longer than any line"});
  write_gzip(bomb.path(), "{\"segments\": \"" + std::string(std::size_t{300} << 20, 'a') + "\"}");
  expect_contains(complaint_of_command("snapshot " + bomb.path()), {bomb.path(), "the most for a file of its size"});
  write_gzip(bomb.path(), std::string(std::size_t{200} << 20, ']'));
  expect_contains(complaint_of_command("snapshot " + bomb.path()), {bomb.path(), "the most for a file of its size"});
}

TEST(CommandLine, SaysNothingOfGoodTracesWhenOneIsBad) {
  expect_contains(complaint_of_command("replay " + trace("lsm") + " /nowhere/trace.csv"), {"/nowhere/trace.csv"});
}

TEST(CommandLine, RefusesStepsOfSeveralTraces) {
  const TemporaryFile steps;
  expect_contains(complaint_of_command("replay --steps " + steps.path() + " " + trace("lsm") + " " + trace("frag_toy")),
                  {"--steps", "one trace"});
  EXPECT_FALSE(std::filesystem::exists(steps.path()));
}

TEST(CommandLine, RefusesStepsOfThePageHeap) {
  const TemporaryFile two("a,1,100,0\nf,1\n");
  const TemporaryFile steps;
  for (const char* config : {"heap:pages", "expandable_segments:True"}) {
    expect_contains(complaint_of_command("replay --steps " + steps.path() + " " + two.path(), config),
                    {"--steps " + steps.path(), "page heap"});
  }
  EXPECT_FALSE(std::filesystem::exists(steps.path()));
}

TEST(CommandLine, RefusesStepsThatCannotBeWritten) {
  expect_contains(complaint_of_command("replay --steps /nowhere/steps.txt " + trace("lsm")), {"/nowhere/steps.txt"});
  expect_contains(complaint_of_command("replay --steps / " + trace("lsm")), {"--steps /"});
}

TEST(CommandLine, FailsWhenItsOutputCannotBeWritten) {
  if (!std::filesystem::exists("/dev/full")) GTEST_SKIP() << "no /dev/full here";
  const TemporaryFile one("a,1,512,0\n");
  const std::string replay =
      std::string("'") + CACHALOT_COMMAND + "' replay --json " + one.path() + " >/dev/full 2>/dev/null";
  EXPECT_EQ(WEXITSTATUS(std::system(replay.c_str())), 2);
}

TEST(CommandLine, TellsOfOptionsWithoutEffect) {
  const Outcome outcome = run_command(fmt::format(
      "'{}' replay --config pinned_num_register_threads:2 {}/traces/lsm.csv.gz", CACHALOT_COMMAND, CACHALOT_DATA_DIR));
  EXPECT_EQ(outcome.exit_code, 0);
  EXPECT_EQ(outcome.err.find("cachalot: option pinned_num_register_threads has no effect: "), 0u) << outcome.err;
}

TEST(CommandLine, FailsAsEverWhenItsErrorsCannotBeWritten) {
  for (const char* closed : {"2>&-", "2>/dev/full"}) {
    const std::string replay = fmt::format("'{}' replay /nowhere/trace.csv {}", CACHALOT_COMMAND, closed);
    EXPECT_EQ(run_command("(" + replay + ")").exit_code, 2) << closed;
  }
}

// Each "0," becomes a value of 16 bytes.
TEST(CommandLine, NamesTheFileThatTheHostHasNoMemoryFor) {
  if (kSanitized) GTEST_SKIP() << "sanitizers need more address space than this test leaves";
  std::string zeros = "[0";
  for (int i = 0; i < 10'000'000; ++i) zeros += ",0";
  const TemporaryFile large(zeros + "]");
  for (const char* command : {"snapshot", "replay"}) {
    const Outcome outcome =
        run_command(fmt::format("(ulimit -v 200000; '{}' {} {})", CACHALOT_COMMAND, command, large.path()));
    EXPECT_EQ(outcome.exit_code, 2) << command;
    EXPECT_EQ(outcome.err, "cachalot: " + large.path() + ": the host has no memory for it\n");
  }
}

}  // namespace
}  // namespace cachalot::tools
