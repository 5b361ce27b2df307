// Runs a program on a simulated GPU and gathers what its processes say of memory.
#pragma once

#include <atomic>
#include <cstddef>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "simulator/models/context_costs.h"
#include "tools/analysis/sites.h"
#include "tools/analysis/timeline.h"
#include "tools/base/report_tree.h"
#include "tools/simulation/card_table.h"
#include "tools/simulation/simulation_files.h"

namespace cachalot::tools {

// The memory that a device holds beside the program's requests: the CUDA context and libraries, in a driver's report.

// Returns what a device of a driver's report was charged with.
simulator::ContextCharge context_of(const nlohmann::json& device);

// Returns how much less and more than it was charged with a device may take on a GPU: the sum of all estimates.
simulator::Spread spread_of(const nlohmann::json& device);

// Returns the spread without the context and libraries, which take the same on each GPU: NCCL's part.
simulator::Spread spread_of_others(const nlohmann::json& device);

class Cluster;
class ForkServer;

// One rank of a job, as the program finds it in its environment: RANK, WORLD_SIZE, LOCAL_RANK, ….
struct RankAlone {
  int rank = 0;
  int world_size = 1;
  int local_rank = 0;  // below the number of devices

  bool operator==(const RankAlone&) const = default;
};

struct SimulationOptions {
  std::vector<std::string> program;   // with its arguments; found on PATH
  std::optional<std::string> gpu;     // a key of the table of GPUs; the simulator's default without
  std::optional<std::string> memory;  // of each device, "24GiB"; the GPU's own without
  // The memory of the CUDA context and libraries on each device: a size, "none" or "model", an estimate. If absent,
  // `context` of CACHALOT_SIM, otherwise "model".
  std::optional<std::string> context;
  int devices = 1;
  std::optional<RankAlone> rank;      // the program is one rank of a job whose others are absent
  std::string compute = "small";      // the computed operations: none, small or all (simulator/README.md)
  std::string unknown = "zero";       // the sizes that depend on unknown values: zero, expected or max
  bool strict = false;                // CUDA's rules are watched: strict:1 of CACHALOT_SIM (simulator/README.md)
  bool races = false;                 // memory is watched that is used again too early: races:1 of CACHALOT_SIM
  std::optional<int> max_steps;       // ends the program after these optimizer steps, or forward calls
  std::optional<double> max_seconds;  // and the time
  std::string trace_path;             // every allocation of the program, in data/traces' format; empty: not wanted
  // The program is one of several that run in the background: what it prints is kept, signals to us are not its own, and
  // there are traces instead of tables of cards. Not with trace_path.
  bool keeps_timelines = false;  // ProcessReport::timelines, for a page
  bool is_one_of_many = false;
  bool refuses_sizing = false;  // a program that takes half of the memory that it is told to be free runs out of memory
  // The starter of the program, if it is set; for one of many.
  ForkServer* fork_server = nullptr;
  Cluster* cluster = nullptr;
  const std::atomic<bool>* stop = nullptr;  // ends the program when it becomes true

  bool operator==(const SimulationOptions&) const = default;
};

// PyTorch's allocations on one device.
struct RecordedTrace {
  CardRun run;
  int physical_device = 0;  // its number on the machine; run.device is that in the process
  simulator::ContextCharge context;
  simulator::Spread of_others;  // of other estimates than the context
  Trace trace;
};

// One process of the program that used a device.
struct ProcessReport {
  int process = 0;                    // its id
  nlohmann::json driver;              // the simulated driver's record: `report` of CACHALOT_SIM (simulator/README.md)
  nlohmann::json torch;               // PyTorch's allocator: simulator/python/cachalot_simulator; null without PyTorch
  std::vector<CardTable> cards;       // for each device whose allocations are known, if the program fits on it
  std::vector<RecordedTrace> traces;  // likewise, where they were asked for
  std::vector<Timelines> timelines;   // of each device's allocations, where they were asked for
};

struct Simulation {
  ProgramEnding ending;
  std::vector<ProcessReport> processes;
  std::string output;  // the last lines, of one of many
  // For one of many: the modules that a fork server may import for other runs of the program (ForkServer::Start).
  std::vector<std::string> modules;
};

// Returns SimulationOptions::memory for `devices` devices: each has more than any GPU.
std::string unlimited_memory(int devices);

// Returns the traces of all processes in an order that is the same in each run of a program, by the machine's devices.
std::vector<const RecordedTrace*> traces_by_device(const Simulation& simulation);

// Returns a device's part of a torch report; nullptr without.
const nlohmann::json* torch_of(const ProcessReport& report, const nlohmann::json& device);

// Returns a sentence if PyTorch ran and has no kernels for the device: on such a GPU no operation runs. Else "".
std::string missing_kernels(const ProcessReport& report, const nlohmann::json& device);

// Returns whether the program, or PyTorch's allocator, asked for memory that a device did not have. `torch` may be nullptr.
bool ran_out(const nlohmann::json& device, const nlohmann::json* torch);

// Returns whether the program failed, or this process of it, whatever became of the others; but not where an exception ended the
// process that has nothing to do with memory.
bool failed(const Simulation& simulation, const ProcessReport& report);

// Returns whether a process failed, and it, the context or a library asked for memory that a device did not have. A process
// that ran out of memory, went on and ended well fits.
bool lacked_memory(const nlohmann::json& device, const nlohmann::json* torch, bool failed);

// Returns whether memory ran out on a device of the simulation.
bool lacked_memory(const Simulation& simulation);

// Returns whether a process took memory that it sized to a device, or, with refuses_sizing, wanted to.
bool sizes_itself(const Simulation& simulation);

// Returns whether a process broke one of CUDA's rules, left something behind, or used memory again too early. False if that was not
// watched.
bool breaks_rules(const Simulation& simulation);

// Runs a program that is one of many, and leaves what its processes report and how it ended in a folder. Throws as simulate does.
void record_run(const SimulationOptions& options, const std::filesystem::path& folder);

// The program's output goes where ours goes. Thread-safe for programs that are one of many. Throws InvalidArgument when
// there is no such program, no such GPU, no simulator beside this command, or the trace cannot be written.
Simulation simulate(const SimulationOptions& options);

// The simulated CUDA runtime's files, and the variables with which programs find it.

// Returns the variables of a process that forks such programs: the runtime is there, and nothing is observed.
std::vector<std::string> environment_of_fork_server();

// Returns the variables of a process that finds the simulator's modules of Python, and runs no program.
std::vector<std::string> environment_of_helper();

// The traces of what ran in a simulation, and the tables of cards for them.

// Returns every GPU that the simulator knows, with what a program's context takes there; `of_others` is the spread of other
// estimates than the context, which are the same on all GPUs.
std::vector<Card> known_cards(const simulator::ContextCharge& context, const simulator::Spread& of_others = {});

// The report on a simulation.

// The user's choices for the report on a program that ran on a simulated GPU.
struct SimulationReportOptions {
  bool verbose = false;          // also the calls of the driver, and a row for each GPU
  std::optional<Frames> frames;  // the tree of calls that made the peak, instead of lines
  bool races = false;            // they were watched
};

// Returns the report for people. Its first line says how a program ended that failed or was ended, and that it is therefore
// unknown whether it fits, unless memory ran out. Then for each process and device: the peaks of memory used and reserved, the
// place of the peak, what held the memory then and what it was for, and whether it fits. Where CUDA's rules were watched,
// each process's breaches follow, with their stacks; likewise its races.
Section report_of(const Simulation& simulation, const SimulationReportOptions& options);

// A section of the report on one process or device. It is for people: programs get the reports of the processes.
inline Section section_of(std::string title) { return Section(std::move(title), 13); }

// Adds what a process did against CUDA's rules, and its races, where they were watched.
void add_rules(Section& root, const ProcessReport& report, bool has_watched_races);

// Returns the simulation as a JSON object on one line without the newline: exit_code, ending and
// processes, each with process, driver, torch (null without PyTorch) and cards (empty where it is not known on which GPUs it
// fits).
std::string to_json(const Simulation& simulation);

}  // namespace cachalot::tools
