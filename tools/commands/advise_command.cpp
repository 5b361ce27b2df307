// `cachalot advise`: which allocator policy programs should have, by replay of what they allocated.
#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/check.h"
#include "cachalot/errors.h"
#include "simulator/gpu_models.h"
#include "tools/advice/advice.h"
#include "tools/advice/advice_report.h"
#include "tools/advice/advice_sources.h"
#include "tools/commands/command.h"
#include "tools/commands/shared_options.h"
#include "tools/output_file.h"
#include "tools/pages/advice_page.h"
#include "tools/pages/page_writer.h"
#include "tools/parallel.h"
#include "tools/progress_bar.h"
#include "tools/python_program.h"

namespace cachalot::tools {
namespace {

bool tells_context_alone(RunOptions options) {
  options.context.reset();
  return options == RunOptions();
}

class AdviseCommand : public Command {
 public:
  const CommandText& text() const override {
    static const CommandText text = {
        .name = "advise",
        .usage = "[OPTIONS] FILE...|-- PROGRAM [ARGUMENTS...]",
        .summary = "Find the allocator settings with which a PyTorch program needs least memory",
        .details =
            "Replays what a program allocated with PyTorch's default policy, with PyTorch's settings and with "
            "cachalot's "
            "page heap, and prints one table, the best first, with the smallest GPU that completes and the line to "
            "set. "
            "FILE is a memory snapshot with a history, a trace, or another file of allocations. Of several files there "
            "is "
            "a line for each, first that with most memory to be saved; a file that cannot be read is a line with the "
            "error. A PROGRAM is run on a simulated GPU first, as by `cachalot simulate`; its output is not shown.\n\n"
            "The policies are replayed at the same time, on all processors. With --sweep there are nearly 400 "
            "settings. No "
            "replay is made of a setting that cannot make a difference: max_split_size_mb above the largest segment, "
            "roundup_power2_divisions that round no request to another size, cross_stream with one stream, and garbage "
            "collection where held memory stays below its threshold. A replay ends early that holds more than the best "
            "--top ones.\n\n"
            "garbage_collection_threshold is played with a memory limit of what PyTorch's default holds. The exit code "
            "is 0, or 2 after an error, which one line on standard error tells, and if no file can be read.",
        .examples = {{"What should be set after an out-of-memory error?", "cachalot advise oom.pickle"},
                     {"Does a training fit on an l4 with some setting?", "cachalot advise --gpu l4 -- python train.py"},
                     {"The ten best of all settings:", "cachalot advise --sweep trace.csv.gz"},
                     {"All programs of a cluster, on its machines:",
                      "cachalot advise --scheduler tcp://host:8786 snapshots/*.pickle"}}};
    return text;
  }

  void declare(CLI::App& app) override {
    app.add_option("FILE", files_, "Memory snapshots with a history, traces, or other files of allocations");
    declare_cards(app, cards_);
    app.add_flag("--sweep", sweep_,
                 "Try nearly 400 settings: combinations of PyTorch's options, and of the page heap's");
    app.add_option("--top", top_, "How many settings to list, beside PyTorch's default (default: all; 10 of a sweep)")
        ->type_name("N")
        ->check(CLI::Range(1, 1000));
    app.add_option("--jobs", jobs_, "How many replays there are at the same time (default: the number of processors)")
        ->type_name("N")
        ->check(CLI::Range(1, kMostJobs));
    app.add_flag("--no-times", no_times_, "Leave out the host time, the one figure that differs from run to run");
    app.add_option("--scheduler", scheduler_,
                   "Replay on the workers of this Dask scheduler, such as tcp://host:8786: each file is a task")
        ->type_name("ADDRESS");
    app.add_flag("--send-files", send_files_,
                 "With --scheduler: send the files to the workers, which otherwise open the same paths");
    declare_run(app, run_);
    app.add_flag("--json", json_, "Print one JSON object for each program and device, each on one line");
    app.add_option("--html", html_, "Write a page with the tables, and of one file with its history, for a browser")
        ->type_name("FILE");
  }

  bool takes_program_after_dashes() const override { return true; }
  void set_program(const std::vector<std::string>& words) override { program_ = words; }

  int run(const Styles& styles) override {
    CACHALOT_REQUIRE(files_.empty() != program_.empty(), "{}",
                     files_.empty() ? "neither a file nor a program was given; examples: cachalot advise oom.pickle, "
                                      "cachalot advise -- python train.py"
                                    : "files and a program were given: give one of the two");
    CACHALOT_REQUIRE(scheduler_.empty() || program_.empty(), "--scheduler takes files, and no program");
    CACHALOT_REQUIRE(!program_.empty() || tells_context_alone(run_),
                     "files were given: options other than --context that tell how a program runs need a program");
    CACHALOT_REQUIRE(!send_files_ || !scheduler_.empty(), "--send-files needs --scheduler");
    require_no_input(html_, "--html", files_);
    const std::vector<Advice> advices = advices_with_bar();
    const bool all_failed = std::ranges::none_of(advices, [](const Advice& one) { return one.error.empty(); });
    if (all_failed && advices.size() == 1) throw InvalidArgument(advices.front().error);
    if (!html_.empty() && !all_failed) write_html(advices);
    if (json_) {
      for (const Advice& advice : advices) print(to_json(advice) + "\n");
    } else {
      print(advices.size() == 1 ? to_text(advices.front(), styles.out) : fleet_text(advices, styles.out));
    }
    return all_failed ? kUsageError : 0;
  }

 private:
  std::vector<Advice> advices_with_bar() const {
    ProgressBar bar("advise");
    const auto progress = [&](double done) { bar.show(done); };
    if (!scheduler_.empty()) return advise_on_cluster(files_, cluster(), progress);
    const AdviceRequest request{.cards = [&](const auto&... context) { return cards_of(cards_, context...); },
                                .plays_on_first_card = cards_.are_given(),
                                .context = run_.context,
                                .options = {.sweep = sweep_,
                                            .top = top(),
                                            .jobs = jobs_.value_or(processors()),
                                            .measures_host_time = !no_times_,
                                            .progress = progress}};
    if (program_.empty()) return advise_files(files_, request);
    SimulationOptions simulation = simulation_options(run_);
    if (!cards_.gpus.empty()) simulation.gpu = simulator::find_gpu_model(cards_.gpus.front()).key;
    simulation.program = with_python(program_);
    return advise_program(std::move(simulation), request);
  }

  AdviceCluster cluster() const {
    AdviceCluster cluster{.python = python_interpreter(), .scheduler = scheduler_, .sends_files = send_files_};
    const auto add = [&](const char* name, const auto& value) {
      cluster.words.push_back(fmt::format("--{}={}", name, value));
    };
    for (const std::string& gpu : cards_.gpus) add("gpu", gpu);
    for (const std::string& size : cards_.memory) add("memory", size);
    if (run_.context) add("context", *run_.context);
    if (sweep_) cluster.words.emplace_back("--sweep");
    if (top_) add("top", *top_);
    if (no_times_) cluster.words.emplace_back("--no-times");
    return cluster;
  }

  std::optional<std::size_t> top() const {
    constexpr std::size_t kOfSweep = 10;
    return top_ || !sweep_ ? top_ : kOfSweep;
  }

  void write_html(const std::vector<Advice>& advices) const {
    PageReport report;
    report.title = files_.size() == 1 ? files_[0]
                   : files_.empty()   ? program_[0]
                                      : fmt::format("{} files", files_.size());
    report.command = "cachalot advise";
    add_advices(report, advices);
    History history;
    if (files_.size() == 1) {
      history = with_file(files_[0], "history", [](InputFile file) { return read_history(std::move(file)); });
    }
    add_runs(report, history);
    write_page(html_, report, built_in_rules());
  }

  static constexpr int kMostJobs = 256;

  std::vector<std::string> files_;
  CardOptions cards_;
  bool sweep_ = false;
  std::optional<std::size_t> top_;
  std::optional<int> jobs_;
  bool no_times_ = false;
  std::string scheduler_;
  bool send_files_ = false;
  RunOptions run_;
  bool json_ = false;
  std::string html_;  // a file; empty: no page
  std::vector<std::string> program_;
};

}  // namespace

std::unique_ptr<Command> make_advise_command() { return std::make_unique<AdviseCommand>(); }

}  // namespace cachalot::tools
