// NCCL between processes: each rank is a process, and this one made the unique id.
#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "cuda_check.h"
#include "simulator/nccl/nccl_abi.h"

namespace cachalot {
namespace {

using namespace simulator::nccl;

std::string hexadecimal(const ncclUniqueId& id) {
  std::string digits;
  for (const char byte : id.internal) digits += fmt::format("{:02x}", static_cast<unsigned char>(byte));
  return digits;
}

using Pipe = std::unique_ptr<std::FILE, int (*)(std::FILE*)>;

Pipe started(const std::string& command) { return {popen(command.c_str(), "re"), pclose}; }

std::string output_of(const Pipe& pipe) {
  std::string output;
  std::array<char, 4096> buffer;
  while (const std::size_t read = std::fread(buffer.data(), 1, buffer.size(), pipe.get()))
    output.append(buffer.data(), read);
  return output;
}

// Runs a program of nccl_rank on `ranks` processes, each with a device of its own, or all with the first. Returns the
// output of each.
std::vector<std::string> run_ranks(int ranks, const std::string& program, bool share_device = false) {
  ncclUniqueId id{};
  EXPECT_EQ(ncclGetUniqueId(&id), ncclSuccess);
  std::vector<Pipe> pipes;
  for (int rank = 0; rank < ranks; ++rank) {
    const std::string command = fmt::format(
        "CACHALOT_SIM=gpu:l4,devices:{},memory:256MiB CUDA_VISIBLE_DEVICES={} timeout 60 {} {} {} {} {} 2>&1", ranks,
        share_device ? 0 : rank, CACHALOT_NCCL_RANK, hexadecimal(id), rank, ranks, program);
    pipes.push_back(started(command));
  }
  std::vector<std::string> outputs;
  for (const Pipe& pipe : pipes) outputs.push_back(output_of(pipe));
  return outputs;
}

const std::string kRemoteError =
    fmt::format("{} {}", static_cast<int>(ncclRemoteError), static_cast<int>(ncclRemoteError));

TEST(SimulatorNcclProcesses, AnAllReduceGivesEveryProcessTheSum) {
  for (const std::string& output : run_ranks(4, "all_reduce")) EXPECT_EQ(output, "sum 0 10\n");
}

TEST(SimulatorNcclProcesses, ARankThatIsKilledIsARemoteErrorOfTheOthers) {
  const std::vector<std::string> outputs = run_ranks(3, "rank_1_is_killed");
  EXPECT_EQ(outputs[0], "gone " + kRemoteError + "\n");
  EXPECT_EQ(outputs[2], "gone " + kRemoteError + "\n");
}

TEST(SimulatorNcclProcesses, AForkedChildDoesNotPassForItsParent) {
  EXPECT_EQ(run_ranks(2, "rank_1_leaves_a_child")[0], "gone " + kRemoteError + "\n");
}

TEST(SimulatorNcclProcesses, ARankThatIsKilledIsAnAsynchronousErrorOfACallThatMovesNothing) {
  EXPECT_EQ(run_ranks(2, "rank_1_is_killed_before_a_large_call")[0],
            fmt::format("large 0 {}\n", static_cast<int>(ncclRemoteError)));
}

TEST(SimulatorNcclProcesses, ARankMayEndWhenItHasMadeItsCalls) {
  EXPECT_EQ(run_ranks(2, "rank_1_ends_first")[0], "received 0 2\n");
}

TEST(SimulatorNcclProcesses, DifferentCallsAreInvalidUsageThatNamesBoth) {
  const std::vector<std::string> outputs = run_ranks(2, "ranks_disagree");
  EXPECT_EQ(
      outputs[0],
      fmt::format("rank 0 calls ncclAllReduce of 4 bytes and rank 1 calls ncclAllGather of 4 bytes: all ranks of a "
                  "communicator must make the same calls in the same order {} 0\n",
                  static_cast<int>(ncclInvalidUsage)));
}

TEST(SimulatorNcclProcesses, TwoRanksOnOneDeviceAreRefused) {
  for (const std::string& output : run_ranks(2, "all_reduce", true)) {
    EXPECT_TRUE(output.starts_with("Duplicate GPU detected: rank ")) << output;
    EXPECT_TRUE(output.ends_with(fmt::format("both on CUDA device 0 {} 0\n", static_cast<int>(ncclInvalidUsage))))
        << output;
  }
}

// One process alone, with an id that no process made.
std::string run_alone(int rank, const std::string& program) {
  const std::string command =
      fmt::format("CACHALOT_SIM=gpu:l4,absent_ranks:1,memory:256MiB timeout 60 {} 00 {} 1000 {} 2>&1",
                  CACHALOT_NCCL_RANK, rank, program);
  return output_of(started(command));
}

TEST(SimulatorNcclProcesses, AbsentRanksCountAsRanksWithTheDataOfThisOne) {
  EXPECT_EQ(run_alone(2, "all_reduce"), "sum 0 3000\n");
  EXPECT_EQ(run_alone(2, "rest"), "gathered 0 3000\nsplit 0 1000\nreceived 0 3\nbroadcast 0 3\n");
}

}  // namespace
}  // namespace cachalot
