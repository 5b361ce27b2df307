// `cachalot advise`: which allocator policy programs should have, by replay of what they allocated.
#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "base/check.h"
#include "cachalot/errors.h"
#include "simulator/models/context_costs.h"
#include "simulator/models/gpu_models.h"
#include "tools/base/output_file.h"
#include "tools/base/parallel.h"
#include "tools/commands/command.h"
#include "tools/commands/shared_options.h"
#include "tools/output/html_report.h"
#include "tools/simulation/advice.h"
#include "tools/simulation/card_table.h"
#include "tools/simulation/python_program.h"
#include "tools/simulation/python_server.h"
#include "tools/simulation/recorded_programs.h"
#include "tools/simulation/simulation.h"

namespace cachalot::tools {
namespace {

// Puts advice into a report: the recommendation on top, and a table of the policies.
void add_advices(HtmlReport& report, std::span<const Advice> advices) {
  if (advices.size() > 1) report.answer.add(fleet_report({advices.begin(), advices.end()}));
  for (const Advice& advice : advices) {
    if (!advice.error.empty()) continue;
    if (report.verdict.headline.empty()) {
      report.verdict.headline = advice.recommendation.sentence;
      if (!advice.recommendation.line.empty()) {
        report.verdict.remedies.push_back(
            {.title = advice.recommendation.policy,
             .evidence = fmt::format("Replayed with it, the program reserves {} less than with {}.",
                                     format_bytes(advice.recommendation.saved_bytes), now_text(advice)),
             .setting = advice.recommendation.line});
      }
    }
    Section section = report_of(advice);
    section.title.clear();  // the table has it
    report.answer.add(std::move(section));
  }
}

// Advice about files and programs: what is known of their devices, and where the replays are made.

// Returns the GPUs to answer for, with what a context takes on each.
using CardsFor = std::function<std::vector<Card>(const simulator::ContextCharge&, const simulator::Spread& of_others)>;

struct AdviceRequest {
  CardsFor cards;
  bool plays_on_first_card = false;    // otherwise on the device of the recording, where that is known
  std::optional<std::string> context;  // as SimulationOptions::context
  AdviceOptions options;
};

constexpr const char* kUsualGpu = "h100";  // as `cachalot simulate` has it

// Returns the charge for a program that uses PyTorch with cuBLAS, unless the user or the file says more.
simulator::ContextCharge charge_of(const std::optional<std::string>& context, std::optional<std::size_t> recorded) {
  simulator::ContextCharge charge;
  if (context == "none") return charge;
  if (context && context != "model") {
    charge.costs.context_bytes = simulator::parse_context_bytes(*context);
  } else if (!context && recorded) {
    charge.costs.context_bytes = *recorded;
  } else {
    using enum simulator::ModuleLoading;
    const auto all = simulator::estimated_context_costs(simulator::find_gpu_model(kUsualGpu), lazy);
    charge.costs.context_bytes = all.context_bytes;
    charge.costs.of(simulator::ContextLibrary::cublas) = all.of(simulator::ContextLibrary::cublas);
    charge.estimate = lazy;
  }
  return charge;
}

ReplayDevice device_like(const Card& card, std::size_t other_bytes) {
  const std::size_t usable = card.usable_bytes();
  return {.gpu = card.key, .memory_bytes = card.memory_bytes, .usable_bytes = usable - std::min(usable, other_bytes)};
}

std::size_t distance(std::size_t one, std::size_t other) { return std::max(one, other) - std::min(one, other); }

// The usual GPU where it has memory enough, otherwise the largest.
ReplayDevice usual_device(const AdvisedProgram& program, const std::vector<Card>& cards) {
  const auto usual = std::ranges::find(cards, kUsualGpu, &Card::key);
  const std::size_t wanted = peak_live_bytes(*program.trace) / 4 * 5;
  if (usual != cards.end() && device_like(*usual, program.other_bytes).usable_bytes >= wanted)
    return device_like(*usual, program.other_bytes);
  return device_like(*std::ranges::max_element(cards, {}, &Card::memory_bytes), program.other_bytes);
}

// Returns the device that a recorded program is played on.
ReplayDevice device_of(const RecordedProgram& recorded, const std::vector<Card>& cards, bool on_first_card) {
  if (on_first_card) return device_like(cards.front(), recorded.program.other_bytes);
  if (recorded.usable_bytes) {
    const std::size_t usable = *recorded.usable_bytes;
    return {.gpu = "", .memory_bytes = recorded.device_bytes.value_or(usable), .usable_bytes = usable};
  }
  if (!recorded.device_bytes) return usual_device(recorded.program, cards);
  const std::size_t bytes = *recorded.device_bytes;
  Card nearest =
      *std::ranges::min_element(cards, {}, [&](const Card& card) { return distance(card.memory_bytes, bytes); });
  nearest.memory_bytes = bytes;
  return device_like(nearest, recorded.program.other_bytes);
}

Advice advice_about(const RecordedProgram& recorded, const AdviceRequest& request) {
  const std::vector<Card> cards = request.cards(charge_of(request.context, recorded.context_bytes), {});
  return advise(recorded.program, device_of(recorded, cards, request.plays_on_first_card), cards, request.options);
}

Advice failure(const std::string& file, const std::exception& error) {
  Advice advice;
  advice.file = file;
  advice.error = error.what();
  std::ranges::replace(advice.error, '\n', ' ');
  return advice;
}

// Adds what a file comes to.
void advise_file(const std::string& file, const AdviceRequest& request, std::vector<Advice>& advices) {
  try {
    std::vector<Advice> of_file;
    for (const RecordedProgram& recorded : recorded_programs(InputFile(file, "history")))
      of_file.push_back(advice_about(recorded, request));
    std::ranges::move(of_file, std::back_inserter(advices));
  } catch (const std::bad_alloc&) {
    advices.push_back(failure(file, std::runtime_error(file + ": the host has no memory for it")));
  } catch (const std::exception& error) {
    advices.push_back(failure(file, error));
  }
}

std::vector<Advice> advices_of_lines(const std::string& text, const std::string& file) {
  std::vector<Advice> advices;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    advices.push_back(advice_of_json(line));
    advices.back().file = file;  // where it was sent, the worker gave it a name
  }
  return advices;
}

// Returns the advice about each program and device of the files, in their order. A file that cannot be read has one with the
// error. Throws InvalidArgument for an invalid request.
std::vector<Advice> advise_files(const std::vector<std::string>& files, const AdviceRequest& request) {
  request.cards({}, {});  // an error of the request is not one of each file
  charge_of(request.context, std::nullopt);
  std::vector<Advice> advices;
  AdviceRequest part = request;
  const auto all = static_cast<double>(files.size());
  for (std::size_t i = 0; i < files.size(); ++i) {
    part.options.progress = [&](double done) { request.options.progress((static_cast<double>(i) + done) / all); };
    advise_file(files[i], part, advices);
  }
  return advices;
}

// Runs a program on a simulated GPU with enough memory, and returns the advice about each device that it used. Throws
// InvalidArgument, also for a program that does not end well.
std::vector<Advice> advise_program(SimulationOptions simulation, const AdviceRequest& request) {
  simulation.memory = unlimited_memory(simulation.devices);
  simulation.is_one_of_many = true;
  std::string words;
  for (const std::string& word : simulation.program) words += (words.empty() ? "" : " ") + word;
  const Simulation run = simulate(simulation);
  CACHALOT_REQUIRE(run.ending.is_good(), "the program ended with {}; its last lines: {}", how_it_ended(run.ending),
                   run.output);
  CACHALOT_REQUIRE(run.ending.ended != Ended::unknown_value, "{}", why_it_was_ended(run.ending));
  std::vector<Advice> advices;
  for (const RecordedTrace* one : traces_by_device(run)) {
    RecordedProgram recorded;
    recorded.program = {.file = words,
                        .device = one->physical_device,
                        .trace = std::make_shared<const Trace>(one->trace),
                        .other_bytes = one->run.other_bytes,
                        .recorded_reserved_bytes = one->run.reserved_bytes};
    const std::vector<Card> cards = request.cards(one->context, one->of_others);
    advices.push_back(
        advise(recorded.program, device_of(recorded, cards, request.plays_on_first_card), cards, request.options));
  }
  CACHALOT_REQUIRE(!advices.empty(), "nothing is known of what the program allocates with PyTorch");
  return advices;
}

bool tells_context_alone(RunOptions options) {
  options.simulation.context.reset();
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
            "cachalot's page heap, and prints one table, the best first, with the smallest GPU that completes and the "
            "line to set. FILE is a memory snapshot with a history, a trace, or another file of allocations. Of "
            "several files there is a line for each, first that with most memory to be saved; a file that cannot be "
            "read is a line with the error. A PROGRAM is run on a simulated GPU first, as by `cachalot simulate`; its "
            "output is not shown.\n\n"
            "The policies are replayed at the same time, on all processors. With --sweep there are nearly 400 "
            "settings. No replay is made of a setting that cannot make a difference: max_split_size_mb above the "
            "largest segment, roundup_power2_divisions that round no request to another size, cross_stream with one "
            "stream, and garbage collection where held memory stays below its threshold. A replay ends early that "
            "holds more than the best --top ones.\n\n"
            "garbage_collection_threshold is played with a memory limit of what PyTorch's default holds. The exit "
            "code is 0, or 2 after an error, which one line on standard error tells, and if no file can be read.",
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
    app.option_defaults()->group(kOutputOptions);
    app.add_option("--top", top_, "How many settings to list, beside PyTorch's default (default: all; 10 of a sweep)")
        ->type_name("N")
        ->check(CLI::Range(1, 1000));
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
      for (const Advice& advice : advices) print(tools::text_of(json_of(report_of(advice))) + "\n");
    } else {
      print(text_of(advices.size() == 1 ? report_of(advices.front()) : fleet_report(advices), styles.out));
    }
    return all_failed ? kUsageError : 0;
  }

 private:
  std::vector<Advice> advices_with_bar() const {
    ProgressBar bar("advise");
    const auto progress = [&](double done) { bar.show(done); };
    if (!scheduler_.empty()) return advise_on_cluster(progress);
    const AdviceRequest request{.cards = [&](const auto&... context) { return cards_of(cards_, context...); },
                                .plays_on_first_card = cards_.are_given(),
                                .context = run_.simulation.context,
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

  // Returns the advice as advise_files does, on the workers of a cluster: each file is a task of `cachalot advise
  // --json`. Only host times differ. `progress` is called by one thread at a time.
  std::vector<Advice> advise_on_cluster(const std::function<void(double done)>& progress) const {
    Cluster workers(python_interpreter(), scheduler_);
    const std::vector<std::string> words = words_for_workers();
    std::vector<std::vector<Advice>> of_files(files_.size());
    std::mutex mutex;
    std::size_t done = 0;
    const int waiting = std::min(2 * workers.places(), 512);  // so that no worker waits for the next file
    run_in_parallel(files_.size(), waiting, [&](std::size_t i) {
      try {
        if (send_files_) InputFile(files_[i], "history");  // a file that cannot be opened gives the usual message
        of_files[i] = advices_of_lines(workers.advise(words, files_[i], send_files_), files_[i]);
      } catch (const std::exception& error) {
        of_files[i] = {failure(files_[i], error)};
      }
      const std::lock_guard lock(mutex);
      progress(static_cast<double>(++done) / static_cast<double>(files_.size()));
    });
    std::vector<Advice> advices;
    for (std::vector<Advice>& of_file : of_files) std::ranges::move(of_file, std::back_inserter(advices));
    return advices;
  }

  // The options of `cachalot advise` on a worker.
  std::vector<std::string> words_for_workers() const {
    std::vector<std::string> words;
    const auto add = [&](const char* name, const auto& value) { words.push_back(fmt::format("--{}={}", name, value)); };
    for (const std::string& gpu : cards_.gpus) add("gpu", gpu);
    for (const std::string& size : cards_.memory) add("memory", size);
    if (run_.simulation.context) add("context", *run_.simulation.context);
    if (sweep_) words.emplace_back("--sweep");
    if (top_) add("top", *top_);
    if (no_times_) words.emplace_back("--no-times");
    return words;
  }

  std::optional<std::size_t> top() const {
    constexpr std::size_t kOfSweep = 10;
    return top_ || !sweep_ ? top_ : kOfSweep;
  }

  void write_html(const std::vector<Advice>& advices) const {
    HtmlReport report;
    report.title = files_.size() == 1 ? files_[0]
                   : files_.empty()   ? program_[0]
                                      : fmt::format("{} files", files_.size());
    report.command = "cachalot advise";
    add_advices(report, advices);
    std::optional<Timelines> timelines;  // the report has the history of one file
    if (files_.size() == 1) add_runs(report, timelines.emplace(history_in(files_[0])));
    write_html_report(html_, report, built_in_rules());
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
  std::string html_;  // a file; empty: no report
  std::vector<std::string> program_;
};

}  // namespace

std::unique_ptr<Command> make_advise_command() { return std::make_unique<AdviseCommand>(); }

}  // namespace cachalot::tools
