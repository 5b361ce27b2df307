// The options that `simulate` and `fit` share.
#pragma once

#include <CLI/CLI.hpp>
#include <optional>
#include <string>

#include "tools/simulation.h"

namespace cachalot::tools {

// What the program of a run finds beside its GPU, and what ends it before its own end.
struct RunOptions {
  std::optional<std::string> context;
  int devices = 1;
  std::optional<int> world_size;
  std::optional<int> rank;
  std::optional<int> local_rank;
  std::optional<int> max_steps;
  std::optional<double> max_seconds;
  std::string compute = "small";
  std::string unknown = "zero";

  bool operator==(const RunOptions&) const = default;
};

// Declares --context, --devices, --world-size, --rank, --local-rank, --max-steps, --max-seconds, --compute and --unknown.
// `options` must live as long as `app`.
void declare_run(CLI::App& app, RunOptions& options);

// Returns them without a program and a GPU. Throws InvalidArgument where they do not agree.
SimulationOptions simulation_options(const RunOptions& options);

}  // namespace cachalot::tools
