// `cachalot simulate` as its users run it.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>

#include "tests/tools/simulate_command.h"
#include "tests/tools/temporary_file.h"
#include "tools/simulation/simulation_files.h"

namespace cachalot::tools {
namespace {

using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

void expect_complaint(const std::string& arguments, const std::string& part) {
  const Outcome outcome = simulate(arguments);
  EXPECT_EQ(outcome.exit_code, 2) << arguments;
  EXPECT_EQ(outcome.out, "");
  EXPECT_EQ(std::count(outcome.err.begin(), outcome.err.end(), '\n'), 1) << outcome.err;
  EXPECT_THAT(outcome.err, HasSubstr(part));
}

TEST(Simulate, RefusesWhatItCannotDoBeforeTheProgramRuns) {
  expect_complaint("", "no program was given; an example: cachalot simulate train.py");
  expect_complaint("--gpu L4", "no program was given; an example: cachalot simulate --gpu l4 train.py");
  expect_complaint("--gpu voodoo echo ran", "'voodoo' is not a known GPU: `cachalot gpus` lists them; ");
  expect_complaint("--gpu voodoo echo ran", "for another GPU, give its memory instead, such as 24GiB");
  expect_complaint("--gpu A10O echo ran",
                   "'A10O' is not a known GPU: did you mean 'a100'? `cachalot gpus` lists them; ");
  expect_complaint("--divices 2 echo ran", "simulate has no option '--divices'; did you mean '--devices'?");
  expect_complaint("--memory much echo ran", "'much' is not a size");
  expect_complaint("--devices 0 echo ran", "--devices");
  expect_complaint("--rank 1 echo ran", "--rank and --local-rank need --world-size, the number of ranks of the job");
  expect_complaint("--world-size 4 --rank 4 echo ran", "--rank 4 is not a rank of --world-size 4: they are 0 to 3");
  expect_complaint("--world-size 4 --local-rank 1 echo ran", "--local-rank 1 has no device: there are 1 (--devices)");
  expect_complaint("--no-such-option 1 -- echo ran", "--no-such-option");
}

TEST(Simulate, RefusesProgramsAndFilesThatAreNot) {
  NEEDS_THE_SIMULATOR();
  expect_complaint("no-such-program-anywhere", "'no-such-program-anywhere' cannot be run");
  expect_complaint("--json /no/such/folder/report.json echo ran",
                   "--json /no/such/folder/report.json: cannot write the file: No such file or directory");
  expect_complaint("--trace /no/such/folder/trace.csv echo ran",
                   "--trace /no/such/folder/trace.csv: cannot write the file: No such file or directory");
}

TEST(Simulate, WritesAPageWithTheReport) {
  NEEDS_THE_SIMULATOR();
  const TemporaryFile page;
  ASSERT_EQ(simulate("--html '" + page.path() + "' -- " + kProgram + " 4 64 2").exit_code, 0);
  const std::string html = read_whole(page.path());
  EXPECT_TRUE(html.starts_with("<!doctype html>"));
  EXPECT_NE(html.find("</html>"), std::string::npos);
  expect_complaint("--html /no/such/folder/page.html echo ran",
                   "--html /no/such/folder/page.html: cannot write the file: No such file or directory");
}

Outcome simulate_with(const std::string& variables, const std::string& arguments) {
  return run_command(variables + " '" + CACHALOT_COMMAND + "' simulate " + arguments);
}

TEST(Simulate, TakesTheUsersSettingsAndItsOptionsOnTopOfThem) {
  NEEDS_THE_SIMULATOR();
  const std::string settings = "CACHALOT_SIM='gpu:l4,devices:3,faults:\"malloc:9,free:9\"'";
  const std::string seen = simulate_with(settings, "--gpu t4 --strict -- sh -c 'echo \"$CACHALOT_SIM\"'").out;
  for (const char* setting : {"gpu:t4", "devices:1", "faults:\"malloc:9,free:9\"", "strict:1", "context:model"})
    EXPECT_THAT("," + seen, HasSubstr(std::string(",") + setting + ",")) << "not " << setting;
  EXPECT_THAT(
      simulate_with(settings + " CACHALOT_SIM_CONTEXT=5MiB", "env").err,
      HasSubstr("cachalot: the next version does not read CACHALOT_SIM_CONTEXT; set CACHALOT_SIM='context:5MiB,"));
  const std::string former = simulate_with("CACHALOT_SIM_CONTEXT=5MiB", "env").out;
  EXPECT_THAT(former, HasSubstr("context:5MiB"));
  EXPECT_THAT(former, Not(HasSubstr("CACHALOT_SIM_CONTEXT")));
}

TEST(Simulate, RefusesBadSettingsBeforeTheProgramRuns) {
  NEEDS_THE_SIMULATOR();
  const Outcome outcome = simulate_with("CACHALOT_SIM=gqu:l4", "echo ran");
  EXPECT_EQ(outcome.exit_code, 2);
  EXPECT_EQ(outcome.out, "");
  EXPECT_THAT(outcome.err, HasSubstr("CACHALOT_SIM: Unrecognized key 'gqu' (value 'l4'); did you mean 'gpu'?"));
}

TEST(Simulate, WorksWhereTheFolderOfTemporaryFilesHasAnyName) {
  NEEDS_THE_SIMULATOR();
  const TemporaryFile parent;
  const std::filesystem::path folder = std::filesystem::path(parent.path()) / "cachalot, \"of\": [it]";
  std::filesystem::create_directories(folder);
  const std::string report = (folder / "it.json").string();
  const Outcome outcome =
      simulate_with("TMPDIR='" + folder.string() + "'", "--json '" + report + "' '" + kProgram + "' 4 1024");
  EXPECT_THAT(read_whole(report), HasSubstr("\"processes\""));
  EXPECT_THAT(outcome.err, Not(HasSubstr("no process of the program used"))) << outcome.err;
}

TEST(Simulate, EndsAsTheProgramDoesWhenItsReportCannotBeWritten) {
  NEEDS_THE_SIMULATOR();
  for (const char* closed : {"2>&-", "2>/dev/full"}) {
    const std::string command = std::string("'") + CACHALOT_COMMAND + "' simulate sh -c 'exit 3' " + closed;
    EXPECT_EQ(run_command("(" + command + ")").exit_code, 3) << closed;
  }
}

TEST(Simulate, PassesOnArgumentsOutputAndExitCode) {
  NEEDS_THE_SIMULATOR();
  Outcome outcome = simulate("sh -c 'echo $1 $2; exit 3' sh -- --gpu");
  EXPECT_EQ(outcome.out, "-- --gpu\n");
  EXPECT_EQ(outcome.exit_code, 3);
  EXPECT_THAT(outcome.err, HasSubstr("the program used no memory of the GPU, as far as its processes reported"));
  EXPECT_THAT(outcome.err, HasSubstr("exit code 3"));
  EXPECT_EQ(simulate("-- sh -c 'exit 4'").exit_code, 4);
  EXPECT_EQ(simulate("sh -c 'kill -TERM $$'").exit_code, 128 + 15);
}

TEST(Simulate, TellsPeaksAndThatTheProgramFits) {
  NEEDS_THE_SIMULATOR();
  const TemporaryFile json;
  const Outcome outcome = simulate("--gpu t4 --json " + json.path() + " " + kProgram + " 4 1024 6");
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(outcome.err, HasSubstr("Tesla T4, 14.56 GiB"));
  EXPECT_THAT(outcome.err, HasSubstr("on the device 1.30 GiB at the peak"));
  EXPECT_THAT(outcome.err, HasSubstr("context       300.00 MiB: an estimate for Tesla T4; --context SIZE sets it"));
  EXPECT_THAT(outcome.err, HasSubstr("fits          yes, with 13.26 GiB to spare, of which the context may take "
                                     "150.00 MiB more"));
  EXPECT_THAT(outcome.err, testing::ContainsRegex("\n                gtx1650 to .* cards.* yes\n"));
  EXPECT_THAT(outcome.err, Not(HasSubstr("driver calls")));
  const auto report = nlohmann::json::parse(read_whole(json.path()));
  EXPECT_EQ(report.at("exit_code"), 0);
  const auto& device = report.at("processes").at(0).at("driver").at("devices").at(0);
  EXPECT_EQ(device.at("peak_used_bytes"), std::size_t{1034} << 20);
  EXPECT_EQ(device.at("used_bytes"), std::size_t{1030} << 20);
  EXPECT_EQ(device.at("context_bytes"), std::size_t{300} << 20);
  EXPECT_EQ(device.at("context_estimate"), "lazy");
  EXPECT_FALSE(device.contains("context_lack"));
  const nlohmann::json spread = {{"less_bytes", std::size_t{100} << 20}, {"more_bytes", std::size_t{150} << 20}};
  EXPECT_EQ(device.at("spread").at("context"), spread);
  EXPECT_EQ(device.at("spread").at("more_bytes"), spread.at("more_bytes")) << "nothing else is an estimate";
  EXPECT_TRUE(device.at("library_bytes").empty());
}

TEST(Simulate, CountsTheContextThatTheUserGives) {
  NEEDS_THE_SIMULATOR();
  Outcome outcome = simulate("--gpu t4 --context 551MiB " + kProgram + " 4 1024 6");
  EXPECT_THAT(outcome.err, HasSubstr("context       552.00 MiB, as given"));
  EXPECT_THAT(outcome.err, HasSubstr("fits          yes, with 13.01 GiB to spare\n")) << "it has no spread";
  outcome = simulate("--gpu t4 --context none " + kProgram + " 4 1024 6");
  EXPECT_THAT(outcome.err, HasSubstr("fits          yes, with 13.55 GiB to spare\n"));
  EXPECT_THAT(outcome.err, Not(HasSubstr("context")));
  outcome = simulate("--gpu t4 --context 5GiB " + kProgram + " 4 1024");
  EXPECT_THAT(outcome.err, testing::ContainsRegex("\n                p4 to .* yes\n"))
      << "the RTX 2060 is too small for both";
  EXPECT_THAT(simulate("--context 5x true").err, HasSubstr("'5x' is not valid: it must be a size, such as 1429MiB"));
}

TEST(Simulate, HasALargerContextIfAllModulesAreLoadedAtOnce) {
  NEEDS_THE_SIMULATOR();
  const Outcome outcome = simulate("--gpu t4 env CUDA_MODULE_LOADING=EAGER " + kProgram + " 4 8");
  EXPECT_THAT(outcome.err, HasSubstr("context       662.00 MiB: an estimate for Tesla T4"));
}

TEST(Simulate, SaysThatThereIsNoMemoryForTheContext) {
  NEEDS_THE_SIMULATOR();
  const Outcome outcome = simulate("--memory 256MiB " + kProgram + " 4 8");
  EXPECT_NE(outcome.exit_code, 0);
  EXPECT_THAT(outcome.err,
              HasSubstr("device 0 has no memory for the CUDA context, which takes 500.00 MiB: 256.00 MiB"));
  EXPECT_THAT(outcome.err, HasSubstr("fits          NO: no memory for the CUDA context, which takes 500.00 MiB, with"));
}

TEST(Simulate, TellsWhereMemoryRanOut) {
  NEEDS_THE_SIMULATOR();
  const Outcome outcome = simulate("--memory 1GiB --context none " + kProgram + " 600 600");
  EXPECT_EQ(outcome.exit_code, 4);
  EXPECT_THAT(outcome.err, HasSubstr("NO: out of memory at allocation 1, asking for 600.00 MiB with 424.00 MiB free"));
  EXPECT_THAT(outcome.err, Not(HasSubstr("to spare")));
  EXPECT_THAT(simulate("--memory 1GiB --context 300MiB " + kProgram + " 600 200").err,
              HasSubstr("NO: out of memory at allocation 1, asking for 200.00 MiB with 124.00 MiB free"));
}

TEST(Simulate, AProcessThatFailedDoesNotFitThoughTheProgramWentOn) {
  NEEDS_THE_SIMULATOR();
  const Outcome outcome = simulate("--memory 1GiB --context none sh -c '" + kProgram + " 600 600; exit 0'");
  EXPECT_EQ(outcome.exit_code, 0);
  EXPECT_THAT(outcome.err, HasSubstr("NO: out of memory at allocation 1, asking for 600.00 MiB with 424.00 MiB free"));
  EXPECT_THAT(outcome.err, HasSubstr("this process ended with exit code 4; the program went on, and ended well"));
}

TEST(Simulate, TellsWhatProcessesTakeOfADeviceTogether) {
  NEEDS_THE_SIMULATOR();
  const TemporaryFile json;
  const Outcome fits = simulate("--memory 1GiB --context none --json " + json.path() + " " + kProgram + " 600 while '" +
                                kProgram + " 400'");
  EXPECT_EQ(fits.exit_code, 0) << fits.err;
  EXPECT_THAT(fits.err, HasSubstr("on the device 600.00 MiB at the peak, 1000.00 MiB of all processes together"));
  EXPECT_THAT(fits.err, HasSubstr("on the device 400.00 MiB at the peak, 1000.00 MiB of all processes together"));
  EXPECT_THAT(fits.err, HasSubstr("fits          yes, with 24.00 MiB to spare"));
  const auto report = nlohmann::json::parse(read_whole(json.path()));
  for (const auto& process : report.at("processes"))
    EXPECT_EQ(process.at("driver").at("devices").at(0).at("common_peak_bytes"), std::size_t{1000} << 20);
  const Outcome fails = simulate("--memory 1GiB --context none " + kProgram + " 600 while '" + kProgram + " 500'");
  EXPECT_EQ(fails.exit_code, 6);
  EXPECT_THAT(fails.err, HasSubstr("NO: out of memory at allocation 0, asking for 500.00 MiB with 424.00 MiB free"));
  const Outcome one_by_one =
      simulate("--memory 1GiB --context none sh -c '" + kProgram + " 600; " + kProgram + " 700'");
  EXPECT_EQ(one_by_one.exit_code, 0) << "the memory of a process that has ended is free";
  EXPECT_THAT(one_by_one.err, HasSubstr("600.00 MiB at the peak, 700.00 MiB of all processes together"));
  EXPECT_THAT(simulate("--memory 2GiB --context 100MiB " + kProgram + " 600 while '" + kProgram + " 400'").err,
              HasSubstr("on the device 700.00 MiB at the peak, 1.17 GiB of all processes together"))
      << "each has a context";
}

TEST(Simulate, TellsTheProgramWhichRankItIs) {
  NEEDS_THE_SIMULATOR();
  const std::string print = " sh -c 'echo $RANK $WORLD_SIZE $LOCAL_RANK $LOCAL_WORLD_SIZE $GROUP_RANK $MASTER_ADDR'";
  EXPECT_EQ(simulate("--world-size 64 --rank 19 --devices 8" + print).out, "19 64 3 8 2 127.0.0.1\n");
  EXPECT_EQ(simulate("--world-size 4" + print).out, "0 4 0 1 0 127.0.0.1\n");
  EXPECT_EQ(simulate("--world-size 4 --rank 2 --local-rank 1 --devices 2" + print).out, "2 4 1 2 1 127.0.0.1\n");
}

TEST(Simulate, SaysOfBrokenRulesWhereTheyWereBrokenIfStrict) {
  NEEDS_THE_SIMULATOR();
  const TemporaryFile json;
  const Outcome outcome = simulate("--strict --json " + json.path() + " " + kProgram + " 4 again");
  EXPECT_EQ(outcome.exit_code, 3);
  EXPECT_THAT(outcome.err, HasSubstr("CUDA's rules in process "));
  EXPECT_THAT(outcome.err, HasSubstr("broken        CUDA error in cuMemFree: CUDA_ERROR_INVALID_VALUE: "));
  EXPECT_THAT(outcome.err, HasSubstr("main"));
  const auto report = nlohmann::json::parse(read_whole(json.path())).at("processes").at(0).at("driver");
  EXPECT_EQ(report.at("breaches").size(), 1);
  EXPECT_EQ(report.at("breaches").at(0).at("times"), 1);
  EXPECT_FALSE(report.at("breaches").at(0).at("stack").empty());
  EXPECT_TRUE(report.at("leaks").empty());
  EXPECT_EQ(simulate(kProgram + " 4 again").exit_code, 0) << "without --strict nobody watches";
}

TEST(Simulate, SaysWhatWasNotFreedIfStrict) {
  NEEDS_THE_SIMULATOR();
  const Outcome leaks = simulate("--strict " + kProgram + " 4 8 8");
  EXPECT_EQ(leaks.exit_code, 3);
  EXPECT_THAT(leaks.err, HasSubstr("not freed     16.00 MiB in 2 allocations of cudaMalloc"));
  EXPECT_THAT(leaks.err, HasSubstr("main"));
  const Outcome clean = simulate("--strict " + kProgram + " 4");
  EXPECT_EQ(clean.exit_code, 0);
  EXPECT_THAT(clean.err, HasSubstr("broken        none"));
  EXPECT_EQ(simulate("--strict --memory 1GiB " + kProgram + " 600 600").exit_code, 4)
      << "the program's own comes first";
  EXPECT_THAT(simulate(kProgram + " 4 8").err, Not(HasSubstr("not freed")));
}

TEST(Simulate, TellsOfDriverCallsWhenAskedTo) {
  NEEDS_THE_SIMULATOR();
  const Outcome outcome = simulate("--verbose " + kProgram + " 4 8");
  EXPECT_THAT(outcome.err, HasSubstr("driver calls  "));
  EXPECT_THAT(outcome.err, HasSubstr("peak at call  allocation 1 of 2"));
}

TEST(Simulate, SaysFirstThatItDoesNotKnowWhetherAProgramFitsThatFailed) {
  NEEDS_THE_SIMULATOR();
  const TemporaryFile json;
  const Outcome outcome =
      simulate("--context none --json " + json.path() + " sh -c '\"" + kProgram + "\" 4 8; exit 7'");
  EXPECT_EQ(outcome.exit_code, 7);
  EXPECT_THAT(outcome.err, StartsWith("\nunknown: the program ended with exit code 7\ndevice 0 of process "));
  EXPECT_THAT(outcome.err, HasSubstr("fits          unknown: what ran needed 12.00 MiB\n"));
  EXPECT_THAT(outcome.err, Not(HasSubstr("fits on")));
  const auto ending = nlohmann::json::parse(read_whole(json.path())).at("ending");
  EXPECT_EQ(ending.at("good"), false);
  EXPECT_TRUE(ending.at("signal").is_null());
}

TEST(Simulate, SaysWhichSignalEndedTheProgram) {
  NEEDS_THE_SIMULATOR();
  const Outcome killed = simulate("sh -c 'kill -KILL $$'");
  EXPECT_EQ(killed.exit_code, 128 + 9);
  EXPECT_THAT(killed.err, StartsWith("\nunknown: the program ended with signal 9 (Killed)\n"));
  const Outcome terminated = simulate("--context none " + kProgram + " 4 8 terminate");
  EXPECT_EQ(terminated.exit_code, 128 + 15);
  EXPECT_THAT(terminated.err, StartsWith("\nunknown: the program ended with signal 15 (Terminated)\n"));
  EXPECT_THAT(terminated.err, HasSubstr("what ran needed 12.00 MiB")) << "the report was written";
}

TEST(Simulate, SaysThatASegmentationFaultCameFromDeviceMemory) {
  NEEDS_THE_SIMULATOR();
  const Outcome outcome = simulate("--context none " + kProgram + " 4 8 read");
  EXPECT_EQ(outcome.exit_code, 128 + 11);
  EXPECT_THAT(outcome.err, StartsWith("\nunknown: the program ended with signal 11 (Segmentation fault)\n"
                                      "the CPU accessed memory of device 0, at 0x"));
  EXPECT_THAT(outcome.err, HasSubstr("what ran needed 12.00 MiB")) << "the report was written";
}

TEST(Simulate, CallsRunningOutOfMemoryAnAnswer) {
  NEEDS_THE_SIMULATOR();
  const Outcome outcome = simulate("--memory 1GiB " + kProgram + " 600 600");
  EXPECT_THAT(outcome.err, StartsWith("\nthe program ended with exit code 4\n"));
  EXPECT_THAT(outcome.err, Not(HasSubstr("unknown")));
}

TEST(Simulate, EndsAProgramAfterTheSecondsThatWereAskedFor) {
  NEEDS_THE_SIMULATOR();
  const TemporaryFile json;
  const std::string program = "sh -c '\"" + kProgram + "\" 4 8 wait; exit 7'";
  const Outcome outcome = simulate("--max-seconds 2 --context none --json " + json.path() + " " + program);
  EXPECT_EQ(outcome.exit_code, 0) << "it ended as asked";
  EXPECT_THAT(outcome.err, StartsWith("\nthe program was ended as asked\ndevice 0 of process "));
  EXPECT_THAT(outcome.err, HasSubstr("on the device 12.00 MiB at the peak"));
  EXPECT_THAT(outcome.err, HasSubstr("fits          yes"));
  EXPECT_EQ(nlohmann::json::parse(read_whole(json.path())).at("ending").at("asked"), "seconds");
  EXPECT_EQ(simulate("--max-seconds 60 sh -c 'exit 7'").exit_code, 7);
  expect_complaint("--max-seconds 0 echo ran", "--max-seconds");
  expect_complaint("--max-steps 0 echo ran", "--max-steps");
}

TEST(Simulate, PassesSigtermOnToTheProgram) {
  NEEDS_THE_SIMULATOR();
  const TemporaryFile out;
  const Outcome outcome = run_command(
      fmt::format("('{}' simulate --context none {} 4 8 wait >{} & "
                  "timeout 30 sh -c 'until grep -qs waiting {}; do sleep 0.05; done'; kill -TERM $!; wait $!)",
                  CACHALOT_COMMAND, kProgram, out.path(), out.path()));
  EXPECT_EQ(outcome.exit_code, 128 + 15);
  EXPECT_THAT(outcome.err, HasSubstr("what ran needed 12.00 MiB"));
}

TEST(AnEnding, HasTheErrorOfTheProgramsOwnProcessAndTheMostStepsOfAny) {
  const auto process = [](const char* error, int steps) {
    return nlohmann::json{{"error", {{"type", error}, {"at", "train.py:30"}}},
                          {"optimizer_steps", steps},
                          {"forward_calls", 9},
                          {"stopped", nullptr},
                          {"circles_at", nullptr}};
  };
  ProgramEnding ending;
  ending.exit_code = 1;
  EXPECT_EQ(how_it_ended(ending), "exit code 1");
  add_process(ending, process("KeyError", 1234), /*is_main=*/false);
  add_process(ending, process("NameError", 2), /*is_main=*/true);
  add_process(ending, process("ValueError", 3), /*is_main=*/false);
  EXPECT_EQ(how_it_ended(ending), "an error of type NameError at train.py:30 after 1,234 steps");
  ending.optimizer_steps = 0;
  EXPECT_EQ(progress_of(ending), "9 forward calls");
}

TEST(AnEnding, SaysWhereTheProgramReadAnUnknownValueForEver) {
  ProgramEnding ending;
  EXPECT_EQ(why_it_was_ended(ending), "");
  add_process(ending,
              {{"error", nullptr},
               {"optimizer_steps", 1},
               {"forward_calls", 0},
               {"stopped", "unknown value"},
               {"circles_at", "train.py:4 in wait"}},
              /*is_main=*/true);
  EXPECT_EQ(why_it_was_ended(ending),
            "the program was ended after 1 step: at train.py:4 in wait it has read an unknown value 10,000 times");
  EXPECT_EQ(json_of(ending).at("circles_at"), "train.py:4 in wait");
  const nlohmann::json launcher = {
      {"error", nullptr}, {"optimizer_steps", 0}, {"forward_calls", 0}, {"stopped", nullptr}, {"circles_at", nullptr}};
  add_process(ending, launcher, /*is_main=*/false);
  EXPECT_EQ(ending.circles_at, "train.py:4 in wait");
}

TEST(AnEnding, KnowsSignalsFromExitCodes) {
  ProgramEnding ending;
  ending.exit_code = 128 + 9;
  EXPECT_EQ(how_it_ended(ending), "signal 9 (Killed)");
  ending.exit_code = 255;
  EXPECT_EQ(how_it_ended(ending), "exit code 255") << "of sys.exit(-1)";
  EXPECT_TRUE(json_of(ending).at("signal").is_null());
}

TEST(Simulate, TakesNamesOfGpusAsPeopleWriteThem) {
  NEEDS_THE_SIMULATOR();
  for (const char* name : {"t4", "T4", "'Tesla T4'", "tesla-t4"}) {
    EXPECT_THAT(simulate(std::string("--gpu ") + name + " " + kProgram + " 4").err, HasSubstr("Tesla T4")) << name;
  }
  EXPECT_THAT(simulate("--gpu 'RTX 3090' " + kProgram + " 4").err, HasSubstr("NVIDIA GeForce RTX 3090, 23.69 GiB"));
  EXPECT_THAT(simulate("--memory 24G " + kProgram + " 4").err, HasSubstr(", 24.00 GiB"));
}

// A Python that says how it was called, and scripts for it.
class SimulateScripts : public testing::Test {
 protected:
  void SetUp() override {
    if (kProgram.empty()) GTEST_SKIP() << "built without the simulated CUDA runtime";
    std::filesystem::create_directories(folder_.path());
    write("python", "#!/bin/sh\necho python \"$@\"\n");
    make_executable("python");
  }
  std::string path(const std::string& name) const { return folder_.path() + "/" + name; }
  void write(const std::string& name, const std::string& text) const { std::ofstream(path(name)) << text; }
  void make_executable(const std::string& name) const {
    std::filesystem::permissions(path(name), std::filesystem::perms::owner_all);
  }
  Outcome simulate_here(const std::string& arguments, const std::string& variables = "") const {
    return run_command(fmt::format("(cd '{}' && {} CACHALOT_PYTHON='{}' '{}' simulate {})", folder_.path(), variables,
                                   variables.empty() ? path("python") : "", CACHALOT_COMMAND, arguments));
  }

  const TemporaryFile folder_;
};

TEST_F(SimulateScripts, GoToPython) {
  write("train.py", "print(1)\n");
  EXPECT_EQ(simulate_here("train.py --gpu 3").out, "python train.py --gpu 3\n");
  EXPECT_EQ(simulate_here("./train.py").out, "python ./train.py\n");
  EXPECT_EQ(simulate_here("-- train.py").out, "python train.py\n");
  EXPECT_EQ(simulate_here("--gpu t4 -m package.train --help").out, "python -m package.train --help\n");
  EXPECT_EQ(simulate_here("-c 'print(1)'").out, "python -c print(1)\n");
  make_executable("train.py");
  EXPECT_EQ(simulate_here("./train.py").out, "python ./train.py\n") << "without #! it is still Python's";
}

TEST_F(SimulateScripts, ThatAreProgramsRunByThemselves) {
  write("train.py", "#!/bin/sh\necho by itself\n");
  make_executable("train.py");
  EXPECT_EQ(simulate_here("./train.py").out, "by itself\n");
  EXPECT_EQ(simulate_here("train.py").out, "python train.py\n");
}

TEST_F(SimulateScripts, TakeTheVirtualEnvironmentsPython) {
  write("train.py", "");
  std::filesystem::create_directories(path("bin"));
  write("bin/python", "#!/bin/sh\necho environment \"$@\"\n");
  make_executable("bin/python");
  EXPECT_EQ(simulate_here("train.py", "VIRTUAL_ENV='" + folder_.path() + "'").out, "environment train.py\n");
}

TEST_F(SimulateScripts, ThatAreMisspeltGetASuggestion) {
  write("train.py", "");
  write("tool", "");
  EXPECT_EQ(simulate_here("trian.py").err,
            "cachalot: 'trian.py' cannot be run: No such file or directory; did you mean 'train.py'?\n");
  EXPECT_EQ(simulate_here("tool").err,
            "cachalot: 'tool' cannot be run: No such file or directory; did you mean './tool'?\n");
}

TEST(Simulate, WritesATraceOfTheDriversCalls) {
  NEEDS_THE_SIMULATOR();
  const TemporaryFile trace;
  EXPECT_EQ(simulate("--trace " + trace.path() + " " + kProgram + " 4 8").exit_code, 0);
  EXPECT_EQ(read_whole(trace.path()), "a,0,4194304,0\na,1,8388608,0\nf,0\n");
}

TEST(ATraceOfALog, LeavesOutFailuresAndOtherCalls) {
  std::istringstream log(
      "10 0 malloc 0x1000 512 ok\n"
      "20 0 event_record 0x77 0 ok\n"
      "30 0 malloc 0x0 99999 failed\n"
      "40 0 malloc 0x3000 1024 ok\n"
      "50 0 free 0x1000 0 ok\n"
      "60 0 free 0x9999 0 failed\n"
      "cut off in the midd");
  EXPECT_EQ(trace_of_log(log), "a,0,512,0\na,1,1024,0\nf,0\n");
}

TEST(ADriversReport, TellsOfUseWhenMemoryWasAskedFor) {
  EXPECT_FALSE(uses_a_device(nullptr));
  EXPECT_FALSE(uses_a_device({{"devices", {{{"allocations", 0}}}}}));
  EXPECT_TRUE(uses_a_device({{"devices", {{{"allocations", 0}}, {{"allocations", 1}}}}}));
}

}  // namespace
}  // namespace cachalot::tools
