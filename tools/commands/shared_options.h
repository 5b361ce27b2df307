// Parts that several commands share: the given files, the options for devices, GPUs and the program's run, and the progress
// bar.
#pragma once

#include <CLI/CLI.hpp>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <new>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "simulator/models/context_costs.h"
#include "tools/base/input_file.h"
#include "tools/history/history.h"
#include "tools/replay/trace_reader.h"
#include "tools/serving/serving_fit.h"
#include "tools/simulation/card_table.h"
#include "tools/simulation/simulation.h"

namespace cachalot::tools {

// Files that are given on the command line.

// Returns use(file). A file that the host has no memory for is named in the error.
template <typename Use>
auto with_file(const std::string& path, const char* what, Use use) {
  try {
    return use(InputFile(path, what));
  } catch (const std::bad_alloc&) {
    throw std::runtime_error(path + ": the host has no memory for it");
  }
}

// Returns the history in a file of any format that has one; `what` is what the command calls the file.
History history_in(const std::string& path, const char* what = "history");

// Traces and snapshots that commands are given, read; and the device that they are played on.

// Returns the traces of all files: one of a trace, one for each device of a snapshot with a history. All are read before
// the first is used: a bad one is an error before there is any output. Throws InvalidArgument, and std::runtime_error
// where the host has no memory for a file; both name the file.
std::vector<Trace> read_all_traces(const std::vector<std::string>& paths);

// The options that say how large the simulated device is, as given.
struct DeviceSize {
  std::optional<std::string> gpu;
  std::optional<std::string> memory;
};

// Declare what commands that play traces have in common: the paths TRACE..., the options --gpu and --device-memory, and
// the flag --json. The variables must live as long as `app`.
void declare_traces(CLI::App& app, std::vector<std::string>& paths);
void declare_device_size(CLI::App& app, DeviceSize& size);
void declare_json_lines(CLI::App& app, bool& json);

// Declares --html, the file of a page. The variable must live as long as `app`.
void declare_html(CLI::App& app, std::string& html);

// Returns the bytes of an option's SIZE. Throws InvalidArgument, which names the option.
std::size_t bytes_of_option(std::string_view option, const std::string& size);

// Returns the bytes that the options ask for, or `otherwise` where none is given. `memory_option` is what the command calls the
// second one. Throws InvalidArgument, also where both are given.
std::size_t device_bytes(const DeviceSize& size, std::size_t otherwise,
                         std::string_view memory_option = "--device-memory");

// The options that say for which GPUs a command answers.
struct CardOptions {
  std::vector<std::string> gpus;
  std::vector<std::string> memory;

  bool are_given() const { return !gpus.empty() || !memory.empty(); }
};

// Declares --gpu and --memory, which may be given several times. `options` must live as long as `app`.
void declare_cards(CLI::App& app, CardOptions& options);

// Returns the cards that the options name, each once; without options all that are known. `context` is what a program's
// context takes. Throws InvalidArgument.
std::vector<Card> cards_of(const CardOptions& options, const simulator::ContextCharge& context,
                           const simulator::Spread& of_others = {});

// The options that `simulate` and `fit` share.

// The surroundings of a run's program beside its GPU, and the limits that end it early.
struct RunOptions {
  SimulationOptions simulation;  // without a program and a rank
  std::optional<int> world_size;
  std::optional<int> rank;
  std::optional<int> local_rank;

  bool operator==(const RunOptions&) const = default;
};

// Declares --context, --devices, --world-size, --rank, --local-rank, --max-steps, --max-seconds, --compute and --unknown,
// a group of the help.
// `options` must live as long as `app`.
void declare_run(CLI::App& app, RunOptions& options);

// Returns them with the rank. Throws InvalidArgument where they do not agree.
SimulationOptions simulation_options(const RunOptions& options);

// A bar on the terminal, on standard error, for work that takes longer than a second.
class ProgressBar {
 public:
  // Shows nothing, ever, where standard error is not a terminal.
  explicit ProgressBar(std::string label);
  ~ProgressBar();  // wipes the bar away
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;

  // `done` in [0, 1]. Cheap when called often: draws ten times a second.
  void show(double done);

 private:
  using Clock = std::chrono::steady_clock;

  std::string label_;
  bool is_terminal_;
  bool is_drawn_ = false;
  Clock::time_point next_draw_;
};

// A server of a language model in place of a program (fit_server.cpp).

struct ServingOptions {
  std::string engine;  // "": there is no server
  std::string model;
  std::optional<std::int64_t> max_model_len;
  std::optional<std::int64_t> tensor_parallel;
  std::optional<std::int64_t> max_num_seqs;
  std::optional<double> utilization;
  std::string kv_cache_dtype = "auto";
  std::optional<std::string> kv_cache_memory;
  std::string quantization;
  std::string by;  // "run", "arithmetic" or "": a run, where the engine is installed

  bool operator==(const ServingOptions&) const = default;
};

// The servers that a command line asks about.
struct ServingAnswer {
  ServedModel model;
  std::vector<std::string> varied;
  std::vector<ServingFit> fits;
};

void declare_serving(CLI::App& app, ServingOptions& options);

// `vary`: the values of --vary. `all`: of GPUs with the same memory, all. Throws InvalidArgument.
ServingAnswer serving_answer(const ServingOptions& options, const CardOptions& cards,
                             const std::vector<std::string>& vary, bool all);

// Writes the page of the answer. Throws InvalidArgument, which names the path.
void write_serving_page(const std::string& path, const ServingAnswer& answer);

}  // namespace cachalot::tools
