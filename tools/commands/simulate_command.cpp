// `cachalot simulate`: runs a program on a GPU that is not there.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstdio>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "base/check.h"
#include "cachalot/errors.h"
#include "simulator/models/gpu_models.h"
#include "tools/analysis/sites.h"
#include "tools/base/output_file.h"
#include "tools/commands/command.h"
#include "tools/commands/shared_options.h"
#include "tools/output/html_report.h"
#include "tools/simulation/python_program.h"
#include "tools/simulation/simulation.h"

namespace cachalot::tools {
namespace {

class SimulateCommand : public Command {
 public:
  const CommandText& text() const override {
    static const CommandText text = {
        .name = "simulate",
        .usage = "[OPTIONS] [--] PROGRAM [ARGUMENTS...]",
        .summary = "Run a CUDA or PyTorch program on a simulated GPU, and say whether its memory fits",
        .details =
            "PROGRAM is a Python script, -m MODULE or -c CODE for Python, or any other program. Scripts run with "
            "$CACHALOT_PYTHON, else with the virtual environment's Python, else with python3.\n\n"
            "Memory is allocated and freed as on the GPU. Kernels do nothing and take simulated time. Small operations "
            "of PyTorch are computed by the CPU, so that their values steer the program as on the GPU; values that "
            "depend on a large computation are unknown and read as zeros. When the program has ended, standard error "
            "says for each device how much memory was used, where in the program, whether it fits, and where the "
            "program read unknown values. A table says on which other GPUs it fits, and with which allocator policy. "
            "Of a program that did not end well this is unknown, unless it ran out of memory.\n\n"
            "The exit code is the program's, or 2 after an error of the command, which one line on standard error "
            "tells. With --strict or --races it is 3 if the program succeeded and broke a rule of CUDA's, or memory "
            "raced.",
        .examples = {{"Will a training fit on a T4?", "cachalot simulate --gpu t4 train.py --batch-size 8"},
                     {"On a GPU that is not in the list:", "cachalot simulate --memory 24GiB python -m package.train"},
                     {"After three steps of an endless training:", "cachalot simulate --max-steps 3 train.py"},
                     {"Does the program keep CUDA's rules?", "cachalot simulate --strict ./program"},
                     {"Is a record_stream missing?", "cachalot simulate --races train.py"},
                     {"Will one rank of an FSDP job of 64 GPUs fit?", "cachalot simulate --world-size 64 train.py"},
                     {"Record every allocation, to replay it with other options:",
                      "cachalot simulate --trace trace.csv.gz train.py"}}};
    return text;
  }

  void declare(CLI::App& app) override {
    app.add_option("--gpu", run_.simulation.gpu, "GPU model to simulate (default: h100); `cachalot gpus` lists them")
        ->type_name("GPU");
    app.add_option(
           "--memory", run_.simulation.memory,
           "Memory of each device instead of the model's own, such as 24GiB, 24GB or 24000M, all in steps of 1024")
        ->type_name("SIZE");
    app.add_option("--record", record_, "Leave the reports in this folder, for `cachalot fit --scheduler`")
        ->type_name("FOLDER")
        ->check(CLI::ExistingDirectory)
        ->group("");  // no option of a user's
    app.add_flag("--strict", run_.simulation.strict,
                 "Also report calls that break CUDA's rules, and memory, streams and events that are not freed");
    app.add_flag("--races", run_.simulation.races,
                 "Also report memory of PyTorch that is used again while another stream may still use it");
    declare_run(app, run_);
    app.option_defaults()->group(kOutputOptions);
    app.add_option("--frames", frames_,
                   "Tell which calls made the peak, as a tree: own, with the program's own lines alone; library, with "
                   "those of libraries other than PyTorch as well; all")
        ->check(CLI::IsMember({"own", "library", "all"}));
    app.add_option("--trace", run_.simulation.trace_path,
                   "Write every allocation and free for `cachalot replay`; as gzip if it ends in .gz")
        ->type_name("FILE");
    declare_html(app, html_);
    app.add_option("--json", json_, "Also write the report as JSON")->type_name("FILE");
    app.add_flag("-v,--verbose", verbose_,
                 "Also report the calls of the CUDA driver, and a row for each GPU of the table");
  }

  bool takes_program() const override { return true; }
  void set_program(const std::vector<std::string>& words) override { program_ = words; }

  // Wrong options are reported here, before the program runs and its output hides it.
  int run(const Styles& styles) override {
    std::optional<std::string>& gpu = run_.simulation.gpu;
    if (gpu) gpu = simulator::find_gpu_model(*gpu).key;
    if (run_.simulation.memory) parse_bytes(*run_.simulation.memory);
    CACHALOT_REQUIRE(!program_.empty(), "no program was given; an example: cachalot simulate{} train.py",
                     gpu ? " --gpu " + *gpu : "");
    SimulationOptions options = simulation_options(run_);
    CACHALOT_REQUIRE(!options.races || options.compute != "none",
                     "--races needs to see PyTorch's operations, which it does not with --compute none");
    if (!json_.empty()) write_output(json_, "--json", "");
    if (!html_.empty()) write_output(html_, "--html", "");
    options.program = with_python(std::move(program_));
    options.is_one_of_many = !record_.empty();
    options.keeps_timelines = !html_.empty();
    title_ = fmt::format("{}", fmt::join(options.program, " "));
    if (!record_.empty()) {
      record_run(options, record_);
      return 0;
    }
    const Simulation simulation = simulate(options);
    std::fflush(stdout);
    const Section report = report_of(simulation, {.verbose = verbose_, .frames = frames(), .races = options.races});
    tell("\n" + text_of(report, styles.err));
    if (!json_.empty()) write_output(json_, "--json", to_json(simulation) + "\n");
    if (!html_.empty()) write_html(simulation, report);
    constexpr int kRulesBroken = 3;
    const int exit_code = simulation.ending.exit_code;
    return exit_code == 0 && breaks_rules(simulation) ? kRulesBroken : exit_code;
  }

 private:
  // The report, and the memory of each device over time.
  void write_html(const Simulation& simulation, const Section& report) const {
    HtmlReport page{.title = title_, .command = "cachalot simulate", .shows_figures = true, .answer = report};
    for (const ProcessReport& process : simulation.processes) {
      for (const Timelines& timelines : process.timelines) add_runs(page, timelines);
    }
    write_html_report(html_, page, built_in_rules());
  }

  std::optional<Frames> frames() const {
    if (frames_.empty()) return std::nullopt;
    return frames_ == "own" ? Frames::own : frames_ == "library" ? Frames::library : Frames::all;
  }

  RunOptions run_;
  std::string frames_;
  std::string record_;
  std::string json_;
  std::string html_;  // a file; empty: no page
  std::string title_;
  bool verbose_ = false;
  std::vector<std::string> program_;
};

}  // namespace

std::unique_ptr<Command> make_simulate_command() { return std::make_unique<SimulateCommand>(); }

}  // namespace cachalot::tools
