// The `cachalot` command.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <optional>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "base/check.h"
#include "cachalot/errors.h"
#include "tools/progress_bar.h"
#include "tools/replay.h"
#include "tools/report.h"
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
      "line.");
  replay->add_option("TRACE", command.traces, "Traces, text or gzip (data/traces/README.md has the format)")
      ->required();
  replay->add_option("--config", command.config,
                     "The allocator's options, such as max_split_size_mb:32; instead of CACHALOT_CONF");
  replay
      ->add_option("--device-memory", command.device_memory,
                   "Memory of the simulated device: bytes, or a number with KiB, MiB, GiB or TiB")
      ->type_name("SIZE")
      ->capture_default_str();
  replay->add_option("--memory-fraction", command.memory_fraction, "Part of the device the allocator may hold, 0 to 1");
  replay->add_option("--repeat", command.repeat, "Passes to time, the best counts; the figures are the first one's")
      ->type_name("N")
      ->check(CLI::Range(1, 1000000))
      ->capture_default_str();
  replay->add_flag("--json", command.json, "One JSON object a trace, one a line");
  replay
      ->add_option("--steps", command.steps,
                   "Write the state after every event of one trace (data/golden/README.md has the format)")
      ->type_name("FILE");
  replay->add_flag("--min-device", command.min_device, "Also find the smallest device that completes the trace");
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
  options.repeat = command.repeat;
  options.steps_path = command.steps;
  options.find_min_device = command.min_device;
  return options;
}

// All traces are read before the first is replayed: a bad one is an error before there is any output.
std::vector<Trace> read_traces(const std::vector<std::string>& paths) {
  std::vector<Trace> traces;
  for (const std::string& path : paths) traces.push_back(read_trace(path));
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
  CACHALOT_REQUIRE(command.steps.empty() || command.traces.size() == 1, "--steps {} takes one trace, {} were given",
                   command.steps, command.traces.size());
  const ReplayOptions options = replay_options(command);
  std::vector<ReplayResult> results;
  for (const Trace& trace : read_traces(command.traces)) {
    results.push_back(replay_with_progress(trace, options));
    print(command.json ? to_json(results.back(), command.min_device) + "\n"
                       : to_text(results.back(), command.min_device) + "\n");
  }
  if (!command.json && results.size() > 1) print(summary_table(results, command.min_device));
}

int fail(std::string message) {
  std::replace(message.begin(), message.end(), '\n', ' ');
  fmt::print(stderr, "cachalot: {}\n", message);
  return kFailure;
}

int run(int argc, char** argv) {
  CLI::App app("cachalot: a GPU memory allocator that takes PyTorch's decisions, and its measuring tools", "cachalot");
  app.set_version_flag("--version", "cachalot " CACHALOT_VERSION);
  ReplayCommand command;
  declare(app, command);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return app.exit(error);  // --help, --version
    return fail(
        fmt::format("{} (cachalot {}--help tells more)", error.what(), app.got_subcommand("replay") ? "replay " : ""));
  }
  if (!app.got_subcommand("replay")) return fail("no command is given (cachalot --help tells more)");
  run_replay(command);
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
