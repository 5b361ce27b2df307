// `cachalot simulate`: runs a program on a GPU that is not there.
#include <cstdio>
#include <optional>
#include <utility>

#include "base/bytes.h"
#include "base/check.h"
#include "cachalot/errors.h"
#include "simulator/gpu_models.h"
#include "tools/commands/command.h"
#include "tools/python_program.h"
#include "tools/simulation.h"
#include "tools/simulation_files.h"
#include "tools/simulation_report.h"

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
            "depend "
            "on a large computation are unknown and read as zeros. When the program has ended, standard error says for "
            "each device how much memory was used, where in the program, whether it fits, and where the program read "
            "unknown values.\n\n"
            "The exit code is the program's, or 2 after an error of the command, which one line on standard error "
            "tells. With --strict it is 3 if the program succeeded and broke a rule of CUDA's.",
        .examples = {{"Will a training fit on a T4?", "cachalot simulate --gpu t4 train.py --batch-size 8"},
                     {"On a GPU that is not in the list:", "cachalot simulate --memory 24GiB python -m package.train"},
                     {"Does the program keep CUDA's rules?", "cachalot simulate --strict ./program"},
                     {"Will one rank of an FSDP job of 64 GPUs fit?", "cachalot simulate --world-size 64 train.py"},
                     {"Record every allocation, to replay it with other options:",
                      "cachalot simulate --trace trace.csv.gz train.py"}}};
    return text;
  }

  void declare(CLI::App& app) override {
    constexpr int kMostDevices = 64;
    app.add_option("--gpu", gpu_, "GPU model to simulate (default: h100); `cachalot gpus` lists them")
        ->type_name("GPU");
    app.add_option(
           "--memory", memory_,
           "Memory of each device instead of the model's own, such as 24GiB, 24GB or 24000M, all in steps of 1024")
        ->type_name("SIZE");
    app.add_option("--devices", devices_, "How many devices there are")
        ->type_name("N")
        ->check(CLI::Range(1, kMostDevices))
        ->capture_default_str();
    constexpr int kMostRanks = 1'000'000;
    app.add_option("--world-size", world_size_,
                   "The program is one rank of a job of so many, the others of which are absent: see --rank")
        ->type_name("N")
        ->check(CLI::Range(1, kMostRanks));
    app.add_option("--rank", rank_, "Which rank of --world-size it is, from 0 on (default: 0)")
        ->type_name("N")
        ->check(CLI::Range(0, kMostRanks - 1));
    app.add_option("--local-rank", local_rank_,
                   "Its rank on its machine, which is its device (default: the rank modulo --devices)")
        ->type_name("N")
        ->check(CLI::Range(0, kMostDevices - 1));
    app.add_option("--trace", trace_,
                   "Write every allocation and free for `cachalot replay`; as gzip if it ends in .gz")
        ->type_name("FILE");
    app.add_option("--compute", compute_,
                   "Which operations of PyTorch are computed: none, small ones, or all, as slowly as on a CPU")
        ->check(CLI::IsMember({"none", "small", "all"}))
        ->capture_default_str();
    app.add_option(
           "--unknown", unknown_,
           "How many elements an unknown mask selects: as many as if unknown values were zero, every second one as "
           "expected, or all at most")
        ->check(CLI::IsMember({"zero", "expected", "max"}))
        ->capture_default_str();
    app.add_flag("--strict", strict_,
                 "Also report calls that break CUDA's rules, and memory, streams and events that are not freed");
    app.add_option("--json", json_, "Also write the report as JSON")->type_name("FILE");
    app.add_flag("-v,--verbose", verbose_, "Also report the calls of the CUDA driver");
  }

  bool takes_program() const override { return true; }
  void set_program(const std::vector<std::string>& words) override { program_ = words; }

  // What is wrong with an option is told here, before the program runs and its output hides it.
  int run(const Styles& styles) override {
    if (gpu_) gpu_ = simulator::find_gpu_model(*gpu_).key;
    if (memory_) parse_bytes(*memory_);
    CACHALOT_REQUIRE(!program_.empty(), "no program was given; an example: cachalot simulate{} train.py",
                     gpu_ ? " --gpu " + *gpu_ : "");
    const std::optional<RankAlone> rank = rank_alone();
    if (!json_.empty()) write_file(json_, "");
    const Simulation simulation = simulate({.program = with_python(std::move(program_)),
                                            .gpu = gpu_,
                                            .memory = memory_,
                                            .devices = devices_,
                                            .rank = rank,
                                            .compute = compute_,
                                            .unknown = unknown_,
                                            .strict = strict_,
                                            .trace_path = trace_});
    std::fflush(stdout);
    tell("\n" + to_text(simulation, verbose_, styles.err));
    if (!json_.empty()) write_file(json_, to_json(simulation) + "\n");
    constexpr int kRulesBroken = 3;
    return simulation.exit_code == 0 && breaks_rules(simulation) ? kRulesBroken : simulation.exit_code;
  }

 private:
  // Throws InvalidArgument where the options do not fit each other.
  std::optional<RankAlone> rank_alone() const {
    if (!world_size_) {
      CACHALOT_REQUIRE(!rank_ && !local_rank_,
                       "--rank and --local-rank need --world-size, the number of ranks of the job");
      return std::nullopt;
    }
    const int rank = rank_.value_or(0);
    CACHALOT_REQUIRE(rank < *world_size_, "--rank {} is not a rank of --world-size {}: they are 0 to {}", rank,
                     *world_size_, *world_size_ - 1);
    const int local_rank = local_rank_.value_or(rank % devices_);
    CACHALOT_REQUIRE(local_rank < devices_, "--local-rank {} has no device: there are {} (--devices)", local_rank,
                     devices_);
    return RankAlone{rank, *world_size_, local_rank};
  }

  std::optional<int> world_size_;
  std::optional<int> rank_;
  std::optional<int> local_rank_;
  std::optional<std::string> gpu_;
  std::optional<std::string> memory_;
  int devices_ = 1;
  std::string compute_ = "small";
  std::string unknown_ = "zero";
  bool strict_ = false;
  std::string trace_;
  std::string json_;
  bool verbose_ = false;
  std::vector<std::string> program_;
};

}  // namespace

std::unique_ptr<Command> make_simulate_command() { return std::make_unique<SimulateCommand>(); }

}  // namespace cachalot::tools
