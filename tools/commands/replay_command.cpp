// `cachalot replay`: plays recorded allocations through the allocator on a simulated device.
#include <fmt/format.h>

#include <cstdlib>
#include <optional>

#include "base/check.h"
#include "policy/option_warnings.h"
#include "tools/commands/command.h"
#include "tools/commands/shared_options.h"
#include "tools/progress_bar.h"
#include "tools/replay.h"
#include "tools/report.h"
#include "tools/text_layout.h"

namespace cachalot::tools {
namespace {

std::string replay_details() {
  return fmt::format(
      "A trace is text, plain or gzip; data/traces/README.md describes it, and `cachalot simulate --trace` writes one. "
      "Of a memory snapshot the recorded history of each device is played: the blocks that are older than the history "
      "are allocated first, in the order of their addresses.\n\n"
      "The simulated device works as a real one does: each event takes the host one microsecond, each block is used by "
      "--work-us of work on its stream, and the host waits once {} launches are pending on a stream. The host time per "
      "event is measured separately, without any of this.\n\n"
      "A failed allocation is counted and does not stop the replay. The exit code is 0, or 2 after an error, which one "
      "line on standard error tells. A trace of more than {} events is read from its file again for each pass, in "
      "bounded memory; it must be a regular file.",
      with_commas(LaunchQueue::kMostPending), with_commas(Trace::kMostHeldEvents));
}

class ReplayCommand : public Command {
 public:
  const CommandText& text() const override {
    static const CommandText text = {
        .name = "replay",
        .usage = "[OPTIONS] TRACE...",
        .summary = "Replay recorded allocations on a simulated GPU, and report memory, fragmentation and time",
        .details = replay_details(),
        .examples = {{"The history in a memory snapshot, with cachalot's page heap:",
                      "cachalot replay --config heap:pages snapshot.pickle"},
                     {"A trace on a GPU of 24 GiB, and the smallest GPU that would do:",
                      "cachalot replay --device-memory 24GiB --min-device trace.csv.gz"}}};
    return text;
  }

  void declare(CLI::App& app) override {
    declare_traces(app, traces_);
    declare_device(app);
    declare_work(app);
    declare_output(app);
  }

  int run(const Styles& styles) override {
    const ReplayOptions options = replay_options();
    warn_of_options_without_effect(parse_options(options.config));
    require_one_for_steps(traces_.size());
    const std::vector<Trace> traces = read_all_traces(traces_);
    require_one_for_steps(traces.size());  // a snapshot may have several
    std::vector<ReplayResult> results;
    for (const Trace& trace : traces) {
      results.push_back(play(trace, options));
      print(json_ ? to_json(results.back(), min_device_) + "\n"
                  : to_text(results.back(), report_contents(), styles.out) + "\n");
    }
    if (!json_ && results.size() > 1) print(summary_table(results, report_contents(), styles.out));
    return 0;
  }

 private:
  void declare_device(CLI::App& app) {
    app.add_option("--config", config_,
                   "The allocator's options, such as max_split_size_mb:32 or heap:pages; CACHALOT_CONF otherwise")
        ->type_name("OPTIONS");
    declare_device_size(app, device_);
    app.add_option("--memory-fraction", memory_fraction_, "The part of the device that the allocator may hold, 0 to 1")
        ->type_name("PART");
    app.add_flag("--min-device", min_device_, "Also find the smallest device on which no allocation fails");
  }

  void declare_work(CLI::App& app) {
    app.add_option("--work-us", work_us_,
                   "Microseconds of simulated GPU work on each block; 0: the GPU is never behind the host")
        ->type_name("TIME")
        ->capture_default_str();
    app.add_option("--work-gb-per-s", work_gb_per_s_,
                   "The work on each block also takes as long as filling it at this rate; 0: no longer")
        ->type_name("RATE")
        ->capture_default_str();
    app.add_option(
           "--wait-every", wait_every_,
           "The host waits for a stream's work after every N allocations, as a program does that reads a result; "
           "0: never")
        ->type_name("N")
        ->check(CLI::Range(0, 1'000'000'000))
        ->capture_default_str();
    app.add_flag("--check-hazards", check_hazards_,
                 "Fail where memory is handed out or unmapped while GPU work may still use it");
    app.add_option("--iterations", iterations_,
                   "How many times to play the trace in a row on one allocator; after each, what still lives is freed")
        ->type_name("N")
        ->check(CLI::Range(1, 1000))
        ->capture_default_str();
    app.add_option("--repeat", repeat_, "Timing passes; the fastest is reported. Affects no other figure")
        ->type_name("N")
        ->check(CLI::Range(1, 1000000))
        ->capture_default_str();
  }

  void declare_output(CLI::App& app) {
    declare_json_lines(app, json_);
    app.add_option(
           "--steps", steps_,
           "Write the allocator's state after every event of one trace to a file (data/golden/README.md has the "
           "format); only for PyTorch's policy, not for the page heap")
        ->type_name("FILE");
    app.add_flag("-v,--verbose", verbose_, "Also report device calls and other internal counts");
  }

  ReplayReportContents report_contents() const { return {.min_device = min_device_, .internals = verbose_}; }

  std::string effective_config() const {
    if (config_) return *config_;
    const char* const environment = std::getenv("CACHALOT_CONF");
    return environment == nullptr ? "" : environment;
  }

  ReplayOptions replay_options() const {
    ReplayOptions options;
    options.config = effective_config();
    options.device_bytes = device_bytes(device_, options.device_bytes);
    options.memory_fraction = memory_fraction_;
    options.work_us = work_us_;
    options.work_gb_per_s = work_gb_per_s_;
    options.wait_every = wait_every_;
    options.check_hazards = check_hazards_;
    options.iterations = iterations_;
    options.repeat = repeat_;
    options.steps_path = steps_;
    options.find_min_device = min_device_;
    options.models_expandable_segments = json_;
    return options;
  }

  void require_one_for_steps(std::size_t traces) const {
    CACHALOT_REQUIRE(steps_.empty() || traces == 1, "--steps {} takes one trace, {} were given", steps_, traces);
  }

  static ReplayResult play(const Trace& trace, ReplayOptions options) {
    ProgressBar bar(trace.path);
    options.progress = [&](double done) { bar.show(done); };
    return replay(trace, options);
  }

  std::vector<std::string> traces_;
  std::optional<std::string> config_;
  DeviceSize device_;
  std::optional<double> memory_fraction_;
  double work_us_ = ReplayOptions().work_us;
  double work_gb_per_s_ = ReplayOptions().work_gb_per_s;
  int wait_every_ = ReplayOptions().wait_every;
  bool check_hazards_ = false;
  int iterations_ = 1;
  int repeat_ = 1;
  bool json_ = false;
  std::string steps_;
  bool min_device_ = false;
  bool verbose_ = false;
};

}  // namespace

std::unique_ptr<Command> make_replay_command() { return std::make_unique<ReplayCommand>(); }

}  // namespace cachalot::tools
