// `cachalot fit`: the largest parameters with which a program fits on GPUs that are not there.
#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "base/check.h"
#include "tools/cluster.h"
#include "tools/commands/command.h"
#include "tools/commands/shared_options.h"
#include "tools/fit.h"
#include "tools/fit_report.h"
#include "tools/parallel.h"
#include "tools/progress_bar.h"
#include "tools/python_program.h"
#include "tools/simulation_files.h"

namespace cachalot::tools {
namespace {

class FitCommand : public Command {
 public:
  const CommandText& text() const override {
    static const CommandText text = {
        .name = "fit",
        .usage = "[OPTIONS] [--] PROGRAM [ARGUMENTS...]",
        .summary = "Find the largest batch size with which a PyTorch program fits, for each GPU and allocator policy",
        .details =
            "PROGRAM is as for `cachalot simulate`; {batch} in its words stands for the value of the parameter batch. "
            "With several --vary, the largest value of the last is found for each combination of the others. Where "
            "one of these is a range, FIRST..LAST, a program that fits with some value of it is assumed to fit with "
            "every smaller one, and the table has only the rows above which the largest value falls.\n\n"
            "The program runs on simulated GPUs of unlimited memory, for some of the values. What it allocates is "
            "replayed on the memory of each GPU with each policy. Between two values that were run, allocations are "
            "computed where they grow linearly, which further runs check. A program that fits with some value is "
            "assumed to fit with every smaller one.\n\n"
            "The program's output is not shown. The exit code is 0, or 2 after an error, which one line on standard "
            "error tells; a run that does not end well is one.",
        .examples = {{"The largest batch size for each GPU:",
                      "cachalot fit --vary batch=1..256 --max-steps 2 train.py --batch {batch}"},
                     {"On two GPUs, for each of two lengths:",
                      "cachalot fit --gpu t4 --gpu l4 --vary seq=128,512 --vary batch=1..256 train.py {seq} {batch}"}}};
    return text;
  }

  void declare(CLI::App& app) override {
    app.add_option("--vary", vary_,
                   "A parameter and its whole numbers: NAME=FIRST..LAST or NAME=VALUE,VALUE,...; may be "
                   "given several times")
        ->type_name("NAME=VALUES")
        ->allow_extra_args(false);
    declare_cards(app, cards_);
    app.add_option("--jobs", jobs_, "How many runs there are at the same time")
        ->type_name("N")
        ->check(CLI::Range(1, kMostJobs))
        ->default_str(
            "the number of processors, or with --scheduler of the workers' threads; 1 with several --devices");
    app.add_option("--scheduler", scheduler_,
                   "Make the runs on the workers of this Dask scheduler, such as tcp://host:8786")
        ->type_name("ADDRESS");
    declare_run(app, run_);
    app.add_option("--json", json_, "Also write the results as JSON")->type_name("FILE");
    app.add_flag("-v,--verbose", verbose_, "Print a row for each GPU");
  }

  bool takes_program() const override { return true; }
  void set_program(const std::vector<std::string>& words) override { program_ = words; }

  int run(const Styles& styles) override {
    CACHALOT_REQUIRE(!program_.empty(),
                     "no program was given; an example: cachalot fit --vary batch=1..256 train.py "
                     "--batch {{batch}}");
    FitOptions options;
    options.run = simulation_options(run_);
    options.cards = cards_of(cards_, {});
    for (const std::string& vary : vary_) options.vary.push_back(parse_vary(vary));
    std::optional<Cluster> cluster;
    if (scheduler_.empty()) {
      options.run.program = with_python(program_);
    } else {
      options.run.program = program_;  // with a worker's Python
      options.run.cluster = &cluster.emplace(python_of_program(), scheduler_);
    }
    options.jobs = jobs_.value_or(jobs_by_default(cluster));
    if (!json_.empty()) write_file(json_, "");
    const FitReport report = fit_with_bar(std::move(options));
    print(to_text(report, verbose_, styles.out));
    if (!json_.empty()) write_file(json_, to_json(report) + "\n");
    return 0;
  }

 private:
  static FitReport fit_with_bar(FitOptions options) {
    ProgressBar bar("fit");
    options.progress = [&](double done) { bar.show(done); };
    return fit(options);
  }

  std::string python_of_program() const {
    const std::string first = with_python(program_).front();
    return is_python_interpreter(first) ? first : python_interpreter();
  }

  // Two programs of several processes at the same time would meet at one port: torchrun's is 29500 unless told.
  int jobs_by_default(const std::optional<Cluster>& cluster) const {
    if (run_.devices > 1) return 1;
    if (cluster) return std::min(cluster->places(), kMostJobs);
    return processors();
  }

  static constexpr int kMostJobs = 256;

  std::vector<std::string> vary_;
  CardOptions cards_;
  std::optional<int> jobs_;
  std::string scheduler_;
  RunOptions run_;
  std::string json_;
  bool verbose_ = false;
  std::vector<std::string> program_;
};

}  // namespace

std::unique_ptr<Command> make_fit_command() { return std::make_unique<FitCommand>(); }

}  // namespace cachalot::tools
