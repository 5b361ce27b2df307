// Tests of the inexact figures of `cachalot simulate`: the context, NCCL, graphs, workspaces.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

#include "tests/tools/simulate_command.h"
#include "tests/tools/temporary_file.h"

namespace cachalot::tools {
namespace {

using testing::HasSubstr;
using testing::Not;

// A run, with the driver's part of its JSON report: of the first process.
struct Reported : Outcome {
  nlohmann::json driver;

  const nlohmann::json& device() const { return driver.at("devices").at(0); }
};

Reported simulate_with_report(const std::string& arguments) {
  const TemporaryFile json;
  Reported run{simulate("--json " + json.path() + " " + arguments), {}};
  run.driver = nlohmann::json::parse(read_whole(json.path())).at("processes").at(0).at("driver");
  return run;
}

TEST(SimulateEstimates, AreNotSureIfWhatIsToSpareIsLessThanTheSpread) {
  NEEDS_THE_SIMULATOR();
  const Outcome close = simulate("--gpu t4 --memory 1GiB " + kProgram + " 600");
  EXPECT_THAT(close.err, HasSubstr("fits          probably: 124.00 MiB to spare, but the context may take 150.00 MiB "
                                   "more\n"));
  const Outcome fails = simulate("--gpu t4 --memory 1GiB " + kProgram + " 600 220");
  EXPECT_THAT(fails.err,
              HasSubstr("asking for 220.00 MiB with 124.00 MiB free\n                but the context may take "
                        "100.00 MiB less, and then there is memory for this\n"));
  EXPECT_THAT(simulate("--gpu t4 --memory 1GiB " + kProgram + " 600 226").err, Not(HasSubstr("may take")));
  const Outcome lack = simulate("--gpu t4 --memory 256MiB " + kProgram + " 8");
  EXPECT_THAT(lack.err, HasSubstr("but the context may take 100.00 MiB less, and then there is memory for this\n"));
  const Outcome list = simulate("--gpu t4 " + kProgram + " 3500");
  EXPECT_THAT(list.err, testing::ContainsRegex("gtx1650 +3.82 GiB  yes[?]\n"));
  EXPECT_THAT(list.err, HasSubstr("?: may change: the context and NCCL are"));
}

TEST(SimulateEstimates, HaveALineForNccl) {
  NEEDS_THE_SIMULATOR();
  const Reported outcome = simulate_with_report("--context none " + kProgram + " 4 nccl");
  EXPECT_THAT(outcome.err,
              HasSubstr("  NCCL          8.00 MiB of it, of which 2.00 MiB are an estimate: half to twice\n"));
  EXPECT_THAT(outcome.err, HasSubstr("of which NCCL may take 2.00 MiB more\n"));
  const nlohmann::json nccl = {{"used_bytes", 8 << 20}, {"peak_used_bytes", 8 << 20}, {"peak_buffer_bytes", 2 << 20}};
  EXPECT_EQ(outcome.device().at("nccl"), nccl);
  EXPECT_EQ(outcome.device().at("spread").at("less_bytes"), 1 << 20);
  EXPECT_EQ(outcome.device().at("spread").at("context").at("more_bytes"), 0);
  EXPECT_THAT(simulate(kProgram + " 4 nccl").err, HasSubstr("of which the context and NCCL may take 52.00 MiB more\n"));
  EXPECT_THAT(simulate(kProgram + " 4 8").err, Not(HasSubstr("NCCL")));
}

TEST(SimulateEstimates, CountLargerStacksAndHeaps) {
  NEEDS_THE_SIMULATOR();
  const Reported outcome = simulate_with_report("--gpu t4 --context 300MiB " + kProgram + " 4 stacks");
  EXPECT_THAT(outcome.err, HasSubstr("on the device 436.00 MiB at the peak"));
  EXPECT_THAT(outcome.err,
              HasSubstr("  limits        136.00 MiB: stacks, heap or printf buffer that the program made larger\n"))
      << "2 KiB for each of 40 x 1024 threads, and 56 MiB";
  const nlohmann::json limits = {
      {"bytes", 136 << 20}, {"stack_bytes", 3 << 10}, {"heap_bytes", 64 << 20}, {"printf_bytes", 7 << 20}};
  EXPECT_EQ(outcome.device().at("limits"), limits);
  EXPECT_THAT(simulate("--context none " + kProgram + " 4 stacks").err, Not(HasSubstr("limits")));
}

TEST(SimulateEstimates, CountExecutableGraphs) {
  NEEDS_THE_SIMULATOR();
  const Reported outcome = simulate_with_report("--gpu t4 " + kProgram + " 4 graphs");
  EXPECT_EQ(outcome.exit_code, 0) << "the memory is given back";
  EXPECT_THAT(outcome.err, HasSubstr("on the device 310.00 MiB at the peak"));
  EXPECT_THAT(outcome.err,
              HasSubstr("  CUDA graphs   10.00 MiB: an estimate, half to twice, for 1 executable graph with "
                        "1,024 kernels\n"));
  EXPECT_THAT(outcome.err, HasSubstr("of which the context may take 160.00 MiB more\n"));
  const nlohmann::json graphs = {{"bytes", 10 << 20}, {"graphs", 1}, {"kernel_nodes", 1024}};
  EXPECT_EQ(outcome.device().at("graphs"), graphs);
  EXPECT_THAT(simulate("--context none " + kProgram + " 4 graphs").err, Not(HasSubstr("CUDA graphs")));
  EXPECT_EQ(simulate("--gpu t4 --memory 308MiB " + kProgram + " 4 graphs").exit_code, 8) << "no memory for the graph";
}

TEST(SimulateEstimates, NameTheLibrariesWhoseWorkspacesAreMissing) {
  NEEDS_THE_SIMULATOR();
  const Reported outcome = simulate_with_report(kProgram + " 4 workspaces");
  EXPECT_THAT(outcome.err,
              HasSubstr("  libraries     workspaces of cuSOLVER, cuSPARSE, cuFFT are not known and missing\n"));
  EXPECT_EQ(outcome.driver.at("unknown_workspaces"), nlohmann::json::array({"cuSOLVER", "cuSPARSE", "cuFFT"}));
  EXPECT_THAT(simulate(kProgram + " 4 8").err, Not(HasSubstr("libraries")));
}

}  // namespace
}  // namespace cachalot::tools
