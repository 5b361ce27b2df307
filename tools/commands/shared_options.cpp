#include "tools/commands/shared_options.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <iterator>
#include <limits>
#include <utility>

#include "base/bytes.h"
#include "base/check.h"
#include "cachalot/errors.h"
#include "simulator/models/gpu_models.h"
#include "tools/analysis/recorded_trace.h"
#include "tools/commands/command.h"
#include "tools/history/history.h"
#include "tools/history/readers.h"
#include "tools/replay/replay.h"

namespace cachalot::tools {
namespace {

// Returns whether the file has a history that is not a cachalot trace already.
bool has_history(InputFile& file) {
  const std::optional<HistoryFormat> text = text_format(file.begin());
  return text ? *text != HistoryFormat::cachalot_trace : is_snapshot(file);
}

std::vector<Trace> traces_in(InputFile file) {
  if (!has_history(file)) {
    const std::string foreign = foreign_format(file.begin(), "trace or a memory snapshot");
    CACHALOT_REQUIRE(foreign.empty(), "{}: {}", file.path(), foreign);
    const std::string_view begin = file.begin();  // empty: the file has nothing, or cannot be read
    const bool may_be_trace = begin.empty() || begin.starts_with("a,") || begin.starts_with("f,");
    CACHALOT_REQUIRE(may_be_trace, "{}: {}", file.path(), unknown_format(begin));
    return {read_trace(std::move(file))};
  }
  const History history = read_history(std::move(file));
  std::vector<Trace> traces = traces_of(history);
  if (history.unknown_actions > 0) {
    tell(fmt::format("cachalot: {}: left out of the history: {}\n", history.path,
                     unknown_actions_text(history.unknown_actions)));
  }
  return traces;
}

}  // namespace

History history_in(const std::string& path, const char* what) {
  return with_file(path, what, [](InputFile file) { return read_history(std::move(file)); });
}

std::vector<Trace> read_all_traces(const std::vector<std::string>& paths) {
  std::vector<Trace> traces;
  for (const std::string& path : paths) {
    std::ranges::move(with_file(path, "trace", [](InputFile file) { return traces_in(std::move(file)); }),
                      std::back_inserter(traces));
  }
  return traces;
}

void declare_traces(CLI::App& app, std::vector<std::string>& paths) {
  app.add_option("TRACE", paths, "Traces, or memory snapshots of PyTorch or cachalot with a history")->required();
}

void declare_device_size(CLI::App& app, DeviceSize& size) {
  app.add_option("--gpu", size.gpu, "Play on the memory of this GPU, such as l4 (`cachalot gpus` lists them)")
      ->type_name("GPU");
  app.add_option("--device-memory", size.memory,
                 fmt::format("Memory of the simulated device, such as 24GiB, 24GB or 24000M, all in steps of 1024 "
                             "(default: {}MiB)",
                             ReplayOptions().device_bytes >> 20))
      ->type_name("SIZE");
}

void declare_html(CLI::App& app, std::string& html) {
  app.add_option("--html", html, "Also write a page with all of it, for a browser")->type_name("FILE");
}

void declare_json_lines(CLI::App& app, bool& json) {
  app.add_flag("--json", json, "Print one JSON object for each trace, each on one line")->group(kOutputOptions);
}

std::size_t bytes_of_option(std::string_view option, const std::string& size) {
  try {
    return parse_bytes(size);
  } catch (const InvalidArgument& error) {
    throw InvalidArgument(fmt::format("{}: {}", option, error.what()));
  }
}

std::size_t device_bytes(const DeviceSize& size, std::size_t otherwise, std::string_view memory_option) {
  CACHALOT_REQUIRE(!size.gpu || !size.memory, "--gpu {} and {} {} both say how large the device is: give one",
                   *size.gpu, memory_option, *size.memory);
  if (size.gpu) return simulator::find_gpu_model(*size.gpu).memory_bytes;
  return size.memory ? bytes_of_option(memory_option, *size.memory) : otherwise;
}

void declare_cards(CLI::App& app, CardOptions& options) {
  app.add_option("--gpu", options.gpus,
                 "A GPU to answer for (default: all that `cachalot gpus` lists); may be given several times")
      ->type_name("GPU")
      ->allow_extra_args(false);
  app.add_option("--memory", options.memory,
                 "A GPU like an h100 with so much memory instead, such as 24GiB; may be given several times")
      ->type_name("SIZE")
      ->allow_extra_args(false);
}

std::vector<Card> cards_of(const CardOptions& options, const simulator::ContextCharge& context,
                           const simulator::Spread& of_others) {
  std::vector<Card> all = known_cards(context, of_others);
  if (!options.are_given()) return all;
  std::vector<Card> cards;
  const auto add = [&](Card card) {
    const auto is_the_same = [&](const Card& other) {
      return other.key == card.key && other.memory_bytes == card.memory_bytes;
    };
    if (std::ranges::none_of(cards, is_the_same)) cards.push_back(std::move(card));
  };
  const auto known = [&](const std::string& name) {
    return *std::ranges::find(all, simulator::find_gpu_model(name).key, &Card::key);
  };
  for (const std::string& name : options.gpus) add(known(name));
  for (const std::string& size : options.memory) {
    Card card = known("h100");
    card.product = size;
    card.memory_bytes = parse_bytes(size);
    card.key = format_bytes(card.memory_bytes);
    add(std::move(card));
  }
  return cards;
}

namespace {

std::string complaint_about_context(const std::string& text) {
  try {
    if (text != "none" && text != "model") simulator::parse_context_bytes(text);
    return "";
  } catch (const InvalidArgument& error) {
    return error.what();
  }
}

void declare_context(CLI::App& app, std::optional<std::string>& context) {
  app.add_option("--context", context,
                 "What the CUDA context and its libraries take of each device: a size such as 1429MiB, which "
                 "bench/gpu/context.py measures; model: an estimate for the GPU (default); none")
      ->type_name("SIZE")
      ->check(complaint_about_context);
}

void declare_devices(CLI::App& app, RunOptions& options) {
  constexpr int kMostDevices = 64;
  app.add_option("--devices", options.simulation.devices, "How many devices there are")
      ->type_name("N")
      ->check(CLI::Range(1, kMostDevices))
      ->capture_default_str();
  constexpr int kMostRanks = 1'000'000;
  app.add_option("--world-size", options.world_size,
                 "The program is one rank of a job of so many, the others of which are absent: see --rank")
      ->type_name("N")
      ->check(CLI::Range(1, kMostRanks));
  app.add_option("--rank", options.rank, "Which rank of --world-size it is, from 0 on (default: 0)")
      ->type_name("N")
      ->check(CLI::Range(0, kMostRanks - 1));
  app.add_option("--local-rank", options.local_rank,
                 "Its rank on its machine, which is its device (default: the rank modulo --devices)")
      ->type_name("N")
      ->check(CLI::Range(0, kMostDevices - 1));
}

void declare_limits(CLI::App& app, RunOptions& options) {
  constexpr double kShortest = 0.1;
  constexpr double kLongest = 1e7;
  app.add_option("--max-steps", options.simulation.max_steps,
                 "End a Python program after N optimizer steps, or, without optimizers, N forward calls of its "
                 "outermost modules; the report is as of a program that ended by itself")
      ->type_name("N")
      ->check(CLI::Range(1, std::numeric_limits<int>::max()));
  app.add_option("--max-seconds", options.simulation.max_seconds,
                 "End the program with SIGTERM after so many seconds, likewise")
      ->type_name("SECONDS")
      ->check(CLI::Range(kShortest, kLongest));
}

void declare_values(CLI::App& app, RunOptions& options) {
  app.add_option("--compute", options.simulation.compute,
                 "Which operations of PyTorch are computed: none, small ones, or all, as slowly as on a CPU")
      ->check(CLI::IsMember({"none", "small", "all"}))
      ->capture_default_str();
  app.add_option(
         "--unknown", options.simulation.unknown,
         "What sizes are that depend on unknown values, such as of what a mask selects: those of zeros, half of all "
         "elements as expected, or all at most")
      ->check(CLI::IsMember({"zero", "expected", "max"}))
      ->capture_default_str();
}

std::optional<RankAlone> rank_alone(const RunOptions& options) {
  if (!options.world_size) {
    CACHALOT_REQUIRE(!options.rank && !options.local_rank,
                     "--rank and --local-rank need --world-size, the number of ranks of the job");
    return std::nullopt;
  }
  const int world_size = *options.world_size;
  const int rank = options.rank.value_or(0);
  CACHALOT_REQUIRE(rank < world_size, "--rank {} is not a rank of --world-size {}: they are 0 to {}", rank, world_size,
                   world_size - 1);
  const int local_rank = options.local_rank.value_or(rank % options.simulation.devices);
  CACHALOT_REQUIRE(local_rank < options.simulation.devices, "--local-rank {} has no device: there are {} (--devices)",
                   local_rank, options.simulation.devices);
  return RankAlone{rank, world_size, local_rank};
}

}  // namespace

void declare_run(CLI::App& app, RunOptions& options) {
  const std::string outer = app.option_defaults()->get_group();
  app.option_defaults()->group(kRunOptions);
  declare_context(app, options.simulation.context);
  declare_devices(app, options);
  declare_limits(app, options);
  declare_values(app, options);
  app.option_defaults()->group(outer);
}

SimulationOptions simulation_options(const RunOptions& options) {
  SimulationOptions simulation = options.simulation;
  simulation.rank = rank_alone(options);
  return simulation;
}

ProgressBar::ProgressBar(std::string label)
    : label_(std::move(label)),
      is_terminal_(isatty(STDERR_FILENO) == 1),
      next_draw_(Clock::now() + std::chrono::seconds(1)) {}

ProgressBar::~ProgressBar() {
  if (is_drawn_) std::fputs("\r\033[K", stderr);
}

void ProgressBar::show(double done) {
  constexpr std::size_t kWidth = 40;
  if (!is_terminal_ || Clock::now() < next_draw_) return;
  const auto filled = static_cast<std::size_t>(std::clamp(done, 0.0, 1.0) * static_cast<double>(kWidth));
  const std::string bar =
      fmt::format("\r\033[K{} [{:<{}}] {:3.0f} %", label_, std::string(filled, '='), kWidth, 100 * done);
  std::fputs(bar.c_str(), stderr);
  std::fflush(stderr);
  is_drawn_ = true;
  next_draw_ = Clock::now() + std::chrono::milliseconds(100);
}

}  // namespace cachalot::tools
