// Runs a program on a simulated GPU and gathers what its processes say of memory.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

namespace cachalot::tools {

// One rank of a job, as the program finds it in its environment: RANK, WORLD_SIZE, LOCAL_RANK, ….
struct RankAlone {
  int rank = 0;
  int world_size = 1;
  int local_rank = 0;  // below the number of devices
};

struct SimulationOptions {
  std::vector<std::string> program;   // with its arguments; found on PATH
  std::optional<std::string> gpu;     // a key of the table of GPUs; the simulator's default without
  std::optional<std::string> memory;  // of each device, "24GiB"; the GPU's own without
  int devices = 1;
  std::optional<RankAlone> rank;  // the program is one rank of a job whose others are absent
  std::string compute = "small";  // which operations of PyTorch: none, small or all (simulator/README.md)
  std::string unknown = "zero";   // what sizes are that depend on unknown values: zero, expected or max
  bool strict = false;            // CUDA's rules are watched: CACHALOT_SIM_STRICT (simulator/README.md)
  std::string trace_path;         // every allocation of the program, in data/traces' format; empty: not wanted
};

// One process of the program that used a device.
struct ProcessReport {
  int process = 0;        // its id
  nlohmann::json driver;  // what the simulated driver saw: CACHALOT_SIM_REPORT (simulator/README.md)
  nlohmann::json torch;   // what PyTorch's allocator did: simulator/python/cachalot_simulator; null without PyTorch
};

struct Simulation {
  int exit_code = 0;  // the program's; 128 + n after signal n, as shells have it
  std::vector<ProcessReport> processes;
};

// Whether a process broke one of CUDA's rules or left something behind. False if nobody watched.
bool breaks_rules(const Simulation& simulation);

// The program's output goes where ours goes. Throws InvalidArgument when there is no such program, no such GPU, no
// simulator beside this command, or the trace cannot be written.
Simulation simulate(const SimulationOptions& options);

}  // namespace cachalot::tools
