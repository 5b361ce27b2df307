// The `cachalot` command.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <iterator>
#include <new>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "base/check.h"
#include "cachalot/errors.h"
#include "cachalot/version.h"
#include "simulator/gpu_models.h"
#include "tools/progress_bar.h"
#include "tools/replay.h"
#include "tools/report.h"
#include "tools/simulation.h"
#include "tools/simulation_files.h"
#include "tools/simulation_report.h"
#include "tools/snapshot_reader.h"
#include "tools/snapshot_report.h"
#include "tools/snapshot_traces.h"
#include "tools/trace_reader.h"

namespace cachalot::tools {
namespace {

constexpr int kFailure = 2;

// The command line of `cachalot replay`, as given.
struct ReplayCommand {
  std::vector<std::string> traces;
  std::optional<std::string> config;
  std::string device_memory = "200000MiB";
  std::optional<double> memory_fraction;
  double work_us = ReplayOptions().work_us;
  bool check_hazards = false;
  int iterations = 1;
  int repeat = 1;
  bool json = false;
  std::string steps;
  bool min_device = false;
};

void declare(CLI::App& app, ReplayCommand& command) {
  CLI::App* replay = app.add_subcommand("replay", "Replay traces through the allocator on a simulated device");
  replay->footer(
      "Prints for each trace: events; peaks of requested, allocated and reserved bytes; fragmentation at the peak of\n"
      "reserved; failed allocations; device calls; simulated driver time; host time an event. A failed allocation\n"
      "does not stop the replay and is no failure of the command. Exit code: 0, or 2 after an error, told in one "
      "line.\n"
      "The device lags as a real one does: each event takes the host a microsecond, each block gets --work-us of work\n"
      "on its stream, and where " +
      fmt::format("{}", LaunchQueue::kMostPending) +
      " blocks of a stream have theirs to come the host waits. Host time is measured\n"
      "without all that.\n"
      "Of a snapshot the history of each device is replayed. What lived before it began is allocated first, in the "
      "order\n"
      "of addresses. A trace of more than " +
      fmt::format("{}", Trace::kMostHeldEvents) +
      " events is read again for each pass, in bounded memory; it must be a file.");
  replay
      ->add_option("TRACE", command.traces,
                   "Traces, text or gzip (data/traces/README.md has the format), or memory snapshots of PyTorch's or "
                   "cachalot's with a history")
      ->required();
  replay->add_option("--config", command.config,
                     "The allocator's options, such as max_split_size_mb:32; instead of CACHALOT_CONF");
  replay
      ->add_option("--device-memory", command.device_memory,
                   "Memory of the simulated device: bytes, or a number with KiB, MiB, GiB or TiB")
      ->type_name("SIZE")
      ->capture_default_str();
  replay->add_option("--memory-fraction", command.memory_fraction, "Part of the device the allocator may hold, 0 to 1");
  replay
      ->add_option("--work-us", command.work_us,
                   "Microseconds of simulated work on each block; 0: never behind the host")
      ->type_name("D")
      ->capture_default_str();
  replay->add_flag("--check-hazards", command.check_hazards,
                   "Fail where memory is handed out or unmapped while work may still use it");
  replay
      ->add_option("--iterations", command.iterations,
                   "Times the trace is played in a row on one allocator; what still lives is freed after each")
      ->type_name("N")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  replay->add_option("--repeat", command.repeat, "Passes to time, the best counts; no other figure comes from them")
      ->type_name("N")
      ->check(CLI::Range(1, 1000000))
      ->capture_default_str();
  replay->add_flag("--json", command.json, "One JSON object a trace, one a line");
  replay
      ->add_option("--steps", command.steps,
                   "Write the state after every event of one trace, in its first iteration (data/golden/README.md has "
                   "the format); not on the page heap, which has no segments to number")
      ->type_name("FILE");
  replay->add_flag("--min-device", command.min_device, "Also find the smallest device that completes the trace");
}

// The command line of `cachalot snapshot`, as given.
struct SnapshotCommand {
  std::vector<std::string> snapshots;
  std::size_t top = 10;
  bool json = false;
};

void declare(CLI::App& app, SnapshotCommand& command) {
  CLI::App* snapshot =
      app.add_subcommand("snapshot", "Say what holds the memory in a snapshot of PyTorch's or cachalot's");
  snapshot->footer(
      "Prints for each device: reserved, allocated, requested and free memory, fragmentation, the same for each pool "
      "and\n"
      "stream, and the places in the program with most live memory. Places need recorded stacks\n"
      "(torch.cuda.memory._record_memory_history). Pickles are read as plain data: nothing in them is executed, and "
      "one\n"
      "that asks for it is refused. Exit code: 0, or 2 after an error, told in one line.");
  snapshot
      ->add_option("SNAPSHOT", command.snapshots,
                   "Files of torch.cuda.memory._dump_snapshot, or JSON of cachalot's; plain or gzip")
      ->required();
  snapshot->add_option("--top", command.top, "How many places to show")
      ->type_name("N")
      ->check(CLI::Range(0, 1000000))
      ->capture_default_str();
  snapshot->add_flag("--json", command.json, "One JSON object a snapshot, one a line");
}

// The command line of `cachalot simulate`, as given.
struct SimulateCommand {
  std::optional<std::string> gpu;
  std::optional<std::string> memory;
  int devices = 1;
  std::string trace;
  std::string json;
};

CLI::App* declare(CLI::App& app, SimulateCommand& command) {
  constexpr int kMostDevices = 64;
  CLI::App* simulate = app.add_subcommand("simulate", "Run a CUDA or PyTorch program on a GPU that is not there");
  simulate->footer(
      "Usage: cachalot simulate [OPTIONS] [--] PROGRAM [ARGUMENTS...]\n"
      "Kernels do nothing and cost simulated time; memory is asked for and given back as on the GPU. When the program "
      "has\n"
      "ended, standard error says for each device: peaks of memory used and reserved, where in the program the peak "
      "was\n"
      "and what held the memory, fragmentation, driver calls, and whether the program fits. Exit code: the program's, "
      "or\n"
      "2 after an error of the command, told in one line. GPUs: " +
      simulator::gpu_model_keys() + ".");
  simulate->add_option("--gpu", command.gpu, "The GPU to be; h100 without")->type_name("GPU");
  simulate->add_option("--memory", command.memory, "Memory of each device instead of the GPU's own, such as 24GiB")
      ->type_name("SIZE");
  simulate->add_option("--devices", command.devices, "How many devices there are")
      ->type_name("N")
      ->check(CLI::Range(1, kMostDevices))
      ->capture_default_str();
  simulate
      ->add_option("--trace", command.trace,
                   "Write every allocation and free for `cachalot replay`; gzip if it ends in .gz")
      ->type_name("FILE");
  simulate->add_option("--json", command.json, "Write the report as JSON, too")->type_name("FILE");
  simulate->prefix_command();
  return simulate;
}

// Takes "-- PROGRAM ARGUMENTS..." off the words behind `simulate` and returns it without the dashes. Only dashes before the
// program count: its own arguments may have some, too. Every option of simulate but --help takes a value.
std::vector<std::string> take_program(std::vector<std::string>& words) {
  std::size_t at = 1;
  while (at < words.size() && words[at].starts_with("--") && words[at] != "--") {
    at += words[at].find('=') == std::string::npos && words[at] != "--help" ? 2 : 1;
  }
  if (at >= words.size() || words[at] != "--") return {};
  const auto dashes = words.begin() + static_cast<std::ptrdiff_t>(at);
  std::vector<std::string> program(dashes + 1, words.end());
  words.erase(dashes, words.end());
  return program;
}

// On standard error. Where that cannot be written, nobody reads it, and the command ends as it would.
void tell(const std::string& text) { std::fputs(text.c_str(), stderr); }

// What is wrong with an option is told here, before the program runs and its output hides it.
int run_simulate(const SimulateCommand& command, std::vector<std::string> program) {
  if (command.gpu) simulator::find_gpu_model(*command.gpu);
  if (command.memory) parse_bytes(*command.memory);
  if (!command.json.empty()) write_file(command.json, "");
  const Simulation simulation = simulate({.program = std::move(program),
                                          .gpu = command.gpu,
                                          .memory = command.memory,
                                          .devices = command.devices,
                                          .trace_path = command.trace});
  std::fflush(stdout);
  tell("\n" + to_text(simulation));
  if (!command.json.empty()) write_file(command.json, to_json(simulation) + "\n");
  return simulation.exit_code;
}

std::string effective_config(const ReplayCommand& command) {
  if (command.config) return *command.config;
  const char* environment = std::getenv("CACHALOT_CONF");
  return environment == nullptr ? "" : environment;
}

ReplayOptions replay_options(const ReplayCommand& command) {
  ReplayOptions options;
  options.config = effective_config(command);
  try {
    options.device_bytes = parse_bytes(command.device_memory);
  } catch (const InvalidArgument& error) {
    throw InvalidArgument(fmt::format("--device-memory: {}", error.what()));
  }
  options.memory_fraction = command.memory_fraction;
  options.work_us = command.work_us;
  options.check_hazards = command.check_hazards;
  options.iterations = command.iterations;
  options.repeat = command.repeat;
  options.steps_path = command.steps;
  options.find_min_device = command.min_device;
  return options;
}

// use(file): what there is no memory for is told with its name.
template <typename Use>
auto with_file(const std::string& path, const char* what, Use use) {
  try {
    return use(InputFile(path, what));
  } catch (const std::bad_alloc&) {
    throw std::runtime_error(path + ": the host has no memory for it");
  }
}

std::vector<Trace> read_traces(InputFile file) {
  if (!is_snapshot(file)) return {read_trace(std::move(file))};
  const TorchSnapshot snapshot = read_snapshot(std::move(file));
  std::vector<Trace> traces = traces_of(snapshot);
  if (snapshot.unknown_actions > 0) {
    tell(fmt::format("cachalot: {}: left out of the history: {}\n", snapshot.path, unknown_actions_text(snapshot)));
  }
  return traces;
}

// All traces are read before the first is replayed: a bad one is an error before there is any output.
std::vector<Trace> read_all_traces(const std::vector<std::string>& paths) {
  std::vector<Trace> traces;
  for (const std::string& path : paths) {
    std::ranges::move(with_file(path, "trace", [](InputFile file) { return read_traces(std::move(file)); }),
                      std::back_inserter(traces));
  }
  return traces;
}

ReplayResult replay_with_progress(const Trace& trace, ReplayOptions options) {
  ProgressBar bar(trace.path);
  options.progress = [&](double done) { bar.show(done); };
  return replay(trace, options);
}

// At once, so that a reader of a pipe sees each trace when it is done.
void print(const std::string& text) {
  fmt::print("{}", text);
  std::fflush(stdout);
}

void run_replay(const ReplayCommand& command) {
  const ReplayOptions options = replay_options(command);
  const auto require_one = [&](std::size_t traces) {
    CACHALOT_REQUIRE(command.steps.empty() || traces == 1, "--steps {} takes one trace, {} were given", command.steps,
                     traces);
  };
  require_one(command.traces.size());
  const std::vector<Trace> traces = read_all_traces(command.traces);
  require_one(traces.size());  // a snapshot may have several
  std::vector<ReplayResult> results;
  for (const Trace& trace : traces) {
    results.push_back(replay_with_progress(trace, options));
    print(command.json ? to_json(results.back(), command.min_device) + "\n"
                       : to_text(results.back(), command.min_device) + "\n");
  }
  if (!command.json && results.size() > 1) print(summary_table(results, command.min_device));
}

void run_snapshot(const SnapshotCommand& command) {
  std::vector<std::string> reports;
  for (const std::string& path : command.snapshots) {
    reports.push_back(with_file(path, "snapshot", [&](InputFile file) {
      const TorchSnapshot snapshot = read_snapshot(std::move(file));
      return command.json ? to_json(snapshot, command.top) + "\n" : to_text(snapshot, command.top);
    }));
  }
  for (const std::string& report : reports) print(report);
}

int fail(std::string message) {
  std::replace(message.begin(), message.end(), '\n', ' ');
  tell("cachalot: " + message + "\n");
  return kFailure;
}

int run(int argc, char** argv) {
  CLI::App app("cachalot: a GPU memory allocator that takes PyTorch's decisions, and its measuring tools", "cachalot");
  app.set_version_flag("--version", "cachalot " CACHALOT_VERSION_STRING);
  ReplayCommand replay;
  SnapshotCommand snapshot;
  SimulateCommand simulate;
  declare(app, replay);
  declare(app, snapshot);
  const CLI::App* const simulate_app = declare(app, simulate);
  std::vector<std::string> words(argv + 1, argv + argc);
  std::vector<std::string> program;
  if (!words.empty() && words.front() == simulate_app->get_name()) program = take_program(words);
  std::ranges::reverse(words);  // as CLI11 wants them
  try {
    app.parse(words);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return app.exit(error);  // --help, --version
    std::string command;
    for (const CLI::App* given : app.get_subcommands()) command = given->get_name() + " ";
    return fail(fmt::format("{} (cachalot {}--help tells more)", error.what(), command));
  }
  if (app.got_subcommand("simulate")) {
    const std::vector<std::string> rest = simulate_app->remaining();
    if (!rest.empty() && (rest.front().starts_with('-') || !program.empty())) {
      return fail(fmt::format("{}: simulate has no such option (cachalot simulate --help tells more)", rest.front()));
    }
    return run_simulate(simulate, program.empty() ? rest : program);
  }
  if (app.got_subcommand("replay")) {
    run_replay(replay);
  } else if (app.got_subcommand("snapshot")) {
    run_snapshot(snapshot);
  } else {
    return fail("no command is given (cachalot --help tells more)");
  }
  if (std::ferror(stdout) != 0) return fail("cannot write to standard output");
  return 0;
}

}  // namespace
}  // namespace cachalot::tools

int main(int argc, char** argv) {
  try {
    return cachalot::tools::run(argc, argv);
  } catch (const std::exception& error) {
    return cachalot::tools::fail(error.what());
  }
}
