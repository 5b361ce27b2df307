// The programs of bench/peers that are always built, and bench/peers.py, as they are used: with next to no work.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>
#include <string>

#include "tests/tools/run_command.h"
#include "tests/tools/temporary_file.h"

namespace cachalot::bench {
namespace {

using testing::HasSubstr;
using tools::Outcome;
using tools::TemporaryFile;

Outcome run_peer(const std::string& arguments) {
  return tools::run_command("LD_PRELOAD='" CACHALOT_SIMULATOR "' CACHALOT_SIM=memory:64GiB '" CACHALOT_PEERS_DIR "'/" +
                            arguments);
}

// The values by the names of the figures.
std::map<std::string, double> figures(const std::string& arguments) {
  const Outcome outcome = run_peer(arguments);
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  std::map<std::string, double> values;
  std::istringstream lines(outcome.out);
  for (std::string line; std::getline(lines, line);) {
    const auto figure = nlohmann::json::parse(line);
    EXPECT_FALSE(figure.at("unit").get<std::string>().empty()) << line;
    values[figure.at("figure")] = figure.at("value");
  }
  return values;
}

std::set<std::string> names(const std::map<std::string, double>& values) {
  std::set<std::string> names;
  for (const auto& [name, value] : values) names.insert(name);
  return names;
}

void expect_complaint(const Outcome& outcome, const std::string& part) {
  EXPECT_EQ(outcome.exit_code, 2);
  EXPECT_EQ(outcome.out, "");
  EXPECT_EQ(std::count(outcome.err.begin(), outcome.err.end(), '\n'), 1) << outcome.err;
  EXPECT_THAT(outcome.err, HasSubstr(part));
}

class Peers : public testing::TestWithParam<const char*> {};

TEST_P(Peers, MeasurePairsAndThreads) {
  const auto values = figures(GetParam() + std::string(" --quick hot_pair threads handoff"));
  EXPECT_EQ(names(values),
            (std::set<std::string>{"hot_pair/512", "hot_pair/4096", "hot_pair/1048576", "hot_pair/8388608", "threads/1",
                                   "threads/2", "threads/4", "threads_one_stream/2", "handoff/1+1", "handoff/2+2"}));
  for (const auto& [figure, value] : values) {
    EXPECT_GT(value, 0) << figure;
    EXPECT_TRUE(std::isfinite(value)) << figure;
  }
}

TEST_P(Peers, PlayATrace) {
  const auto values = figures(GetParam() + std::string(" --quick trace/lsm"));
  EXPECT_EQ(names(values), (std::set<std::string>{"trace/lsm/time", "trace/lsm/memory", "trace/lsm/memory_calls",
                                                  "trace/lsm/event_calls"}));
  EXPECT_GT(values.at("trace/lsm/time"), 0);
  EXPECT_GE(values.at("trace/lsm/memory"), 1);
  EXPECT_LT(values.at("trace/lsm/memory"), 1.2);
}

INSTANTIATE_TEST_SUITE_P(All, Peers, testing::Values("cachalot heap:segments", "cachalot heap:pages", "cuda ''"));
#ifdef CACHALOT_HAS_MR_PEER
INSTANTIATE_TEST_SUITE_P(Mr, Peers, testing::Values("mr heap:segments", "mr any:heap:pages"));
#endif

TEST(PeerPrograms, CountTheDriverCallsOfATrace) {
  EXPECT_EQ(figures("cachalot --quick heap:segments trace/lsm").at("trace/lsm/memory_calls"), 8);  // as PyTorch's
  const double events = 10585;  // one block stays alive; the player frees it
  EXPECT_EQ(figures("cuda --quick '' trace/lsm").at("trace/lsm/memory_calls"), events + 1);
}

TEST(PeerPrograms, OnlyTryTheVariantWhereNothingIsToBeMeasured) {
  const Outcome outcome = run_peer("cachalot heap:pages");
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_EQ(outcome.out, "");
}

TEST(PeerPrograms, SayInOneLineWhatTheyCannotDo) {
  expect_complaint(run_peer("cachalot heap:caves"), "caves");
  expect_complaint(run_peer("cachalot heap:pages warm_pair"), "warm_pair");
  expect_complaint(run_peer("cuda fast"), "fast");
  expect_complaint(run_peer("cuda"), "usage");
  expect_complaint(tools::run_command("'" CACHALOT_PEERS_DIR "'/cachalot heap:pages"),
                   "simulated CUDA runtime is not loaded");
}

TEST(PeersTable, SaysInOneLineWhatItCannotDo) {
  if (tools::run_command("python3 --version").exit_code != 0) GTEST_SKIP() << "there is no python3";
  const std::string script = "python3 '" CACHALOT_PEERS_SCRIPT "' ";
  expect_complaint(tools::run_command(script + "--only warm_pair"), "warm_pair");
  expect_complaint(tools::run_command(script + "--peers malloc"), "malloc");
  expect_complaint(tools::run_command(script + "/no/such/folder"), "/no/such/folder");
  expect_complaint(tools::run_command(script + "--json /no/such/folder/file"), "/no/such/folder");
  expect_complaint(tools::run_command(script + "--no-such-option"), "--no-such-option");
}

}  // namespace
}  // namespace cachalot::bench
