#include "tools/fit_runs.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <stdexcept>
#include <utility>

#include "base/check.h"
#include "cachalot/errors.h"
#include "tools/parallel.h"
#include "tools/simulation_environment.h"
#include "tools/trace_shape.h"

namespace cachalot::tools {
namespace {

std::atomic<bool> is_interrupted{false};

// "batch=8 seq=128".
std::string text_of(const std::vector<Vary>& vary, const std::vector<std::int64_t>& values) {
  std::string text;
  for (std::size_t i = 0; i < vary.size(); ++i) {
    text += fmt::format("{}{}={}", i == 0 ? "" : " ", vary[i].name, values[i]);
  }
  return text;
}

}  // namespace

// Ctrl-C and SIGTERM end the runs; then we end.
class FitRuns::Interrupts {
 public:
  Interrupts() : interrupt_(std::signal(SIGINT, note)), terminate_(std::signal(SIGTERM, note)) {
    is_interrupted = false;
  }
  ~Interrupts() {
    std::signal(SIGINT, interrupt_);
    std::signal(SIGTERM, terminate_);
  }
  Interrupts(const Interrupts&) = delete;
  Interrupts& operator=(const Interrupts&) = delete;

 private:
  static void note(int) { is_interrupted = true; }

  void (*interrupt_)(int);
  void (*terminate_)(int);
};

FitRuns::FitRuns(const FitOptions& options) : options_(options), interrupts_(std::make_unique<Interrupts>()) {}

FitRuns::~FitRuns() = default;

void FitRuns::make(std::vector<FitRun> runs) {
  if (!runs.empty() && first_ && !has_tried_to_fork_ && options_.run.cluster == nullptr) begin_to_fork();
  run_in_parallel(runs.size(), options_.jobs, [&](std::size_t i) {
    if (is_interrupted) return;
    try {
      Recording recording = record(runs[i]);
      const std::lock_guard lock(mutex_);
      runs[i].done(std::move(recording));
      tell_progress(runs.size() - i - 1);
    } catch (...) {
      if (!is_interrupted) throw;
    }
  });
  require_uninterrupted();
}

void FitRuns::require_uninterrupted() const {
  if (is_interrupted) throw std::runtime_error("interrupted");
}

// A program may do something else where modules are imported before it begins: then all runs stay processes of their own.
void FitRuns::begin_to_fork() {
  has_tried_to_fork_ = true;
  std::optional<PythonWords> words = python_words(options_.run.program);
  if (!words || first_->modules.empty()) return;
  try {
    fork_server_ =
        std::make_unique<ForkServer>(std::move(words->interpreter), first_->modules, environment_of_fork_server());
    const bool were_exact = are_exact_;
    const Recording again = record({.gpu = first_->gpu, .values = first_->values, .done = nullptr});
    ++count_;
    if (!are_equal(again, first_->recording)) {
      fork_server_.reset();
      are_exact_ = were_exact;
    }
  } catch (const InvalidArgument&) {
    fork_server_.reset();
  }
}

Recording FitRuns::record(const FitRun& run) {
  SimulationOptions options = options_.run;
  options.program = with_values(options_.run.program, options_.vary, run.values);
  options.gpu = run.gpu;
  options.memory = unlimited_memory(options.devices);
  options.is_one_of_many = true;
  options.fork_server = fork_server_.get();
  options.stop = &is_interrupted;
  Simulation simulation = simulate(options);
  Recording recording;
  recording.is_too_large = lacked_memory(simulation);
  if (recording.is_too_large) return recording;
  const std::string values = text_of(options_.vary, run.values);
  CACHALOT_REQUIRE(simulation.ending.is_good(), "with {} the program ended with {}; its last lines: {}", values,
                   how_it_ended(simulation.ending), simulation.output);
  CACHALOT_REQUIRE(simulation.ending.ended != Ended::unknown_value, "with {} {}", values,
                   why_it_was_ended(simulation.ending));
  for (const RecordedTrace* one : traces_by_device(simulation)) add_part(recording, *one, values);
  CACHALOT_REQUIRE(!recording.parts.empty(), "with {} nothing is known of what the program allocates with PyTorch",
                   values);
  const std::lock_guard lock(mutex_);
  if (!first_) first_ = {run.gpu, run.values, recording, std::move(simulation.modules)};
  return recording;
}

void FitRuns::add_part(Recording& recording, const RecordedTrace& one, const std::string& values) {
  CACHALOT_REQUIRE(one.trace.is_held(), "with {} the program makes {} allocations and frees, and {} are the most: {}",
                   values, one.trace.event_count, Trace::kMostHeldEvents, "give --max-steps");
  recording.architectures = one.run.architectures;
  if (one.context.costs.total() >= recording.context.costs.total()) recording.context = one.context;
  recording.parts.push_back({.trace = with_ordered_frees(one.trace), .other_bytes = one.run.other_bytes});
  if (!one.run.policy) return;
  const bool is_exact = PolicyFit(one.trace).held_bytes(*one.run.policy) == one.run.reserved_bytes;
  const std::lock_guard lock(mutex_);
  are_exact_ = are_exact_ && is_exact;
}

// Tells which part of the known runs is done; each run that is left may bring another one.
void FitRuns::tell_progress(std::size_t left) {
  ++count_;
  const auto done = static_cast<double>(count_);
  if (options_.progress) options_.progress(done / (done + 2 * static_cast<double>(left) + 1));
}

}  // namespace cachalot::tools
