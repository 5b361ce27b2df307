#include "tools/commands/simulation_options.h"

#include <limits>

#include "base/check.h"
#include "cachalot/errors.h"
#include "simulator/context_costs.h"

namespace cachalot::tools {
namespace {

std::string complaint_about_context(const std::string& text) {
  try {
    if (text != "none" && text != "model") simulator::parse_context_bytes(text);
    return "";
  } catch (const InvalidArgument& error) {
    return error.what();
  }
}

void declare_context(CLI::App& app, std::optional<std::string>& context) {
  app.add_option("--context", context,
                 "What the CUDA context and its libraries take of each device: a size such as 1429MiB, which "
                 "bench/gpu/context.py measures; model: an estimate for the GPU (default); none")
      ->type_name("SIZE")
      ->check(complaint_about_context);
}

void declare_devices(CLI::App& app, RunOptions& options) {
  constexpr int kMostDevices = 64;
  app.add_option("--devices", options.devices, "How many devices there are")
      ->type_name("N")
      ->check(CLI::Range(1, kMostDevices))
      ->capture_default_str();
  constexpr int kMostRanks = 1'000'000;
  app.add_option("--world-size", options.world_size,
                 "The program is one rank of a job of so many, the others of which are absent: see --rank")
      ->type_name("N")
      ->check(CLI::Range(1, kMostRanks));
  app.add_option("--rank", options.rank, "Which rank of --world-size it is, from 0 on (default: 0)")
      ->type_name("N")
      ->check(CLI::Range(0, kMostRanks - 1));
  app.add_option("--local-rank", options.local_rank,
                 "Its rank on its machine, which is its device (default: the rank modulo --devices)")
      ->type_name("N")
      ->check(CLI::Range(0, kMostDevices - 1));
}

void declare_limits(CLI::App& app, RunOptions& options) {
  constexpr double kShortest = 0.1;
  constexpr double kLongest = 1e7;
  app.add_option("--max-steps", options.max_steps,
                 "End a Python program after N optimizer steps, or, without optimizers, N forward calls of its "
                 "outermost modules; the report is as of a program that ended by itself")
      ->type_name("N")
      ->check(CLI::Range(1, std::numeric_limits<int>::max()));
  app.add_option("--max-seconds", options.max_seconds, "End the program with SIGTERM after so many seconds, likewise")
      ->type_name("SECONDS")
      ->check(CLI::Range(kShortest, kLongest));
}

void declare_values(CLI::App& app, RunOptions& options) {
  app.add_option("--compute", options.compute,
                 "Which operations of PyTorch are computed: none, small ones, or all, as slowly as on a CPU")
      ->check(CLI::IsMember({"none", "small", "all"}))
      ->capture_default_str();
  app.add_option(
         "--unknown", options.unknown,
         "What sizes are that depend on unknown values, such as of what a mask selects: those of zeros, half of all "
         "elements as expected, or all at most")
      ->check(CLI::IsMember({"zero", "expected", "max"}))
      ->capture_default_str();
}

std::optional<RankAlone> rank_alone(const RunOptions& options) {
  if (!options.world_size) {
    CACHALOT_REQUIRE(!options.rank && !options.local_rank,
                     "--rank and --local-rank need --world-size, the number of ranks of the job");
    return std::nullopt;
  }
  const int world_size = *options.world_size;
  const int rank = options.rank.value_or(0);
  CACHALOT_REQUIRE(rank < world_size, "--rank {} is not a rank of --world-size {}: they are 0 to {}", rank, world_size,
                   world_size - 1);
  const int local_rank = options.local_rank.value_or(rank % options.devices);
  CACHALOT_REQUIRE(local_rank < options.devices, "--local-rank {} has no device: there are {} (--devices)", local_rank,
                   options.devices);
  return RankAlone{rank, world_size, local_rank};
}

}  // namespace

void declare_run(CLI::App& app, RunOptions& options) {
  declare_context(app, options.context);
  declare_devices(app, options);
  declare_limits(app, options);
  declare_values(app, options);
}

SimulationOptions simulation_options(const RunOptions& options) {
  SimulationOptions simulation;
  simulation.context = options.context;
  simulation.devices = options.devices;
  simulation.rank = rank_alone(options);
  simulation.compute = options.compute;
  simulation.unknown = options.unknown;
  simulation.max_steps = options.max_steps;
  simulation.max_seconds = options.max_seconds;
  return simulation;
}

}  // namespace cachalot::tools
