// `cachalot replay`: plays recorded allocations through the allocator on a simulated device.
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "base/check.h"
#include "base/environment.h"
#include "policy/options_without_effect.h"
#include "tools/base/quoted.h"
#include "tools/base/report_tree.h"
#include "tools/base/text_layout.h"
#include "tools/commands/command.h"
#include "tools/commands/shared_options.h"
#include "tools/replay/replay.h"

namespace cachalot::tools {
namespace {

std::string percent(double part) { return fmt::format("{:.2f} %", 100 * part); }

std::string mib(std::size_t bytes) {
  return fmt::format("{:.1f}", static_cast<double>(bytes) / static_cast<double>(kMiB));
}

std::string bytes_text(std::size_t bytes) {
  return bytes <= kKiB ? format_bytes(bytes) : fmt::format("{} ({} bytes)", format_bytes(bytes), bytes);
}

std::string failures_text(const ReplayResult& result) {
  if (!result.first_oom_event) return "none";
  return fmt::format("{}; the first was event {}", with_commas(result.ooms), *result.first_oom_event);
}

std::string calls_text(const ReplayResult& result) {
  std::string text;
  for (const CallCount& call : result.device_calls) {
    if (call.count > 0) text += fmt::format("{}{} {}", text.empty() ? "" : ", ", call.count, call.name);
  }
  return text.empty() ? "none" : text;
}

std::string memory_calls_text(const ReplayResult& result) {
  const std::vector<std::uint64_t>& each = result.memory_calls_per_iteration;
  std::string total = fmt::format("{}", result.memory_calls);
  if (each.size() < 2) return total;
  return fmt::format("{} in {} iterations: {} in the first, {} in the last", total, each.size(), each.front(),
                     each.back());
}

std::string late_text(const ReplayResult& result) {
  if (result.late_allocations == 0) return "none";
  const double share =
      static_cast<double>(result.late_driver_allocations) / static_cast<double>(result.late_allocations);
  return fmt::format("{} of {} in the later half of the trace called the driver ({})", result.late_driver_allocations,
                     result.late_allocations, percent(share));
}

// Returns the figures of a replay. People see the counts of the allocator's own work if they want all of it.
Section report_of(const ReplayResult& result, bool has_min_device, bool is_verbose) {
  Section report(printable(result.trace));
  const auto add = [&](std::string key, std::string label, Cell cell, bool is_shown = true) {
    report.add(Figure{.key = std::move(key), .label = is_shown ? std::move(label) : "", .cell = std::move(cell)});
  };
  const auto add_bytes = [&](std::string key, std::string label, std::size_t bytes) {
    add(std::move(key), std::move(label), {bytes, bytes_text(bytes)});
  };
  report.add_value("trace", result.trace);
  add("events", "events", {result.events, with_commas(result.events)});
  add_bytes("peak_requested_bytes", "peak requested", result.peak_requested_bytes);
  add_bytes("peak_allocated_bytes", "peak allocated", result.peak_allocated_bytes);
  add_bytes("peak_reserved_bytes", "peak reserved", result.peak_reserved_bytes);
  add_bytes("peak_driver_bytes", "peak on the device", result.peak_driver_bytes);
  add("ratio", "reserved / requested", {result.ratio, fmt::format("{:.4f}", result.ratio)});
  add("internal_fragmentation", "internal fragmentation",
      {result.internal_fragmentation,
       percent(result.internal_fragmentation) + " of the allocated memory, when most was reserved"});
  add("external_fragmentation", "external fragmentation",
      {result.external_fragmentation,
       percent(result.external_fragmentation) + " of the free memory, when most was reserved"});
  report.add_value("failed_requests", result.failed_requests);
  add("ooms", "failed allocations", {result.ooms, failures_text(result)});
  report.add_value("first_oom_event", or_null(result.first_oom_event));
  add("check_hazards", "hazards", {result.check_hazards, "none found"}, result.check_hazards);
  add("memory_calls", "memory calls", {result.memory_calls, memory_calls_text(result)},
      is_verbose || result.memory_calls_per_iteration.size() > 1);
  report.add_value("memory_calls_per_iteration", result.memory_calls_per_iteration);
  report.add_value("driver_us_per_iteration", result.driver_us_per_iteration);
  report.add_value("ratio_per_iteration", result.ratio_per_iteration);
  add("driver_us", "simulated driver time", {result.driver_us, fmt::format("{:.3f} ms", result.driver_us / 1000)});
  report.add_value("expandable_us", result.expandable_us);
  add("ns_per_event", "host time", {result.ns_per_event, fmt::format("{:.1f} ns per event", result.ns_per_event)});
  if (has_min_device) {
    add("min_device_bytes", "smallest device",
        {or_null(result.min_device_bytes),
         result.min_device_bytes ? bytes_text(*result.min_device_bytes) : "above 1 PiB"});
  }
  add("work_us", "simulated work", {result.work_us, fmt::format("{} us per allocation", result.work_us)}, is_verbose);
  add("retries", "retries", {result.retries, fmt::format("{} after the cache was given back", result.retries)},
      is_verbose);
  Json calls = Json::object();
  for (const CallCount& call : result.device_calls) calls[std::string(call.name)] = call.count;
  add("device_calls", "device calls", {std::move(calls), calls_text(result)}, is_verbose);
  add("late_allocations", "late allocations", {result.late_allocations, late_text(result)}, is_verbose);
  report.add_value("late_driver_allocations", result.late_driver_allocations);
  add("device_wide_synchronizations", "device-wide waits", result.device_wide_synchronizations, is_verbose);
  report.add_value("stream_waits", result.stream_waits);
  add("live_mappings", "live mappings", {result.live_mappings, fmt::format("{} at the end", result.live_mappings)},
      is_verbose);
  return report;
}

// Returns one row for each trace.
Section summary_of(const std::vector<ReplayResult>& results, bool has_min_device) {
  Table table{.columns = {{.title = "trace", .is_left = true}}, .indent = 0};
  const auto add_column = [&](std::string title, std::size_t width) {
    table.columns.push_back({.title = std::move(title), .unit = Unit::number, .width = width});
  };
  add_column("events", 10);
  add_column("requested MiB", 14);
  add_column("reserved MiB", 13);
  add_column("reserved/requested", 19);
  add_column("internal fragm.", 15);
  add_column("external fragm.", 15);
  add_column("failed", 7);
  add_column("driver ms", 10);
  add_column("host ns/event", 14);
  if (has_min_device) add_column("smallest device MiB", 19);
  const auto text = [](std::string shown) { return Cell{nullptr, std::move(shown)}; };
  for (const ReplayResult& result : results) {
    table.rows.push_back(
        {trace_name(result.trace), text(with_commas(result.events)), text(mib(result.peak_requested_bytes)),
         text(mib(result.peak_reserved_bytes)), text(fmt::format("{:.4f}", result.ratio)),
         text(percent(result.internal_fragmentation)), text(percent(result.external_fragmentation)), result.ooms,
         text(fmt::format("{:.3f}", result.driver_us / 1000)), text(fmt::format("{:.1f}", result.ns_per_event))});
    if (has_min_device) {
      table.rows.back().push_back(text(result.min_device_bytes ? mib(*result.min_device_bytes) : "> 1 PiB"));
    }
  }
  return Section().add(std::move(table));
}

std::string replay_details() {
  return fmt::format(
      "A trace is text, plain or gzip; data/traces/README.md describes it, and `cachalot simulate --trace` writes one. "
      "Of a memory snapshot the recorded history of each device is played, with the requests that failed: the blocks "
      "that are older than the history are allocated first, in the order of their addresses.\n\n"
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
    options_.config = effective_config();
    options_.device_bytes = device_bytes(device_, options_.device_bytes);
    options_.models_expandable_segments = json_;
    warn_of_options_without_effect(parse_options(options_.config));
    require_one_for_steps(traces_.size());
    const std::vector<Trace> traces = read_all_traces(traces_);
    require_one_for_steps(traces.size());  // a snapshot may have several
    std::vector<ReplayResult> results;
    for (const Trace& trace : traces) {
      results.push_back(play(trace, options_));
      const Section report = report_of(results.back(), options_.find_min_device, verbose_);
      print((json_ ? tools::text_of(json_of(report)) : text_of(report, styles.out)) + "\n");
    }
    if (!json_ && results.size() > 1) print(text_of(summary_of(results, options_.find_min_device), styles.out));
    return 0;
  }

 private:
  void declare_device(CLI::App& app) {
    app.add_option("--config", config_,
                   "The allocator's options, such as max_split_size_mb:32 or heap:pages; CACHALOT_CONF otherwise")
        ->type_name("OPTIONS");
    declare_device_size(app, device_);
    app.add_option("--memory-fraction", options_.memory_fraction,
                   "The part of the device that the allocator may hold, 0 to 1")
        ->type_name("PART");
    app.add_flag("--min-device", options_.find_min_device,
                 "Also find the smallest device on which no allocation fails");
  }

  void declare_work(CLI::App& app) {
    app.option_defaults()->group("Options of the played work");
    app.add_option("--work-us", options_.work_us,
                   "Microseconds of simulated GPU work on each block; 0: the GPU is never behind the host")
        ->type_name("TIME")
        ->capture_default_str();
    app.add_option("--work-gb-per-s", options_.work_gb_per_s,
                   "The work on each block also takes as long as filling it at this rate; 0: no longer")
        ->type_name("RATE")
        ->capture_default_str();
    app.add_option(
           "--wait-every", options_.wait_every,
           "The host waits for a stream's work after every N allocations, as a program does that reads a result; "
           "0: never")
        ->type_name("N")
        ->check(CLI::Range(0, 1'000'000'000))
        ->capture_default_str();
    app.add_flag("--check-hazards", options_.check_hazards,
                 "Fail where memory is handed out or unmapped while GPU work may still use it");
    app.add_option(
           "--iterations", options_.iterations,
           "How many times to play the trace in a row on one allocator; blocks that it never frees are kept from "
           "the first time on")
        ->type_name("N")
        ->check(CLI::Range(1, 1000))
        ->capture_default_str();
    app.add_option("--repeat", options_.repeat, "Timing passes; the fastest is reported. Affects no other figure")
        ->type_name("N")
        ->check(CLI::Range(1, 1000000))
        ->capture_default_str();
  }

  void declare_output(CLI::App& app) {
    app.option_defaults()->group(kOutputOptions);
    declare_json_lines(app, json_);
    app.add_option(
           "--steps", options_.steps_path,
           "Write the allocator's state after every event of one trace to a file (data/golden/README.md has the "
           "format); only for PyTorch's policy, not for the page heap")
        ->type_name("FILE");
    app.add_flag("-v,--verbose", verbose_, "Also report device calls and other internal counts");
  }

  std::string effective_config() const {
    if (config_) return *config_;
    return std::string(environment("CACHALOT_CONF").value_or(""));
  }

  void require_one_for_steps(std::size_t traces) const {
    CACHALOT_REQUIRE(options_.steps_path.empty() || traces == 1, "--steps {} takes one trace, {} were given",
                     options_.steps_path, traces);
  }

  static ReplayResult play(const Trace& trace, ReplayOptions options) {
    ProgressBar bar(trace.path);
    options.progress = [&](double done) { bar.show(done); };
    return replay(trace, options);
  }

  std::vector<std::string> traces_;
  ReplayOptions options_;
  std::optional<std::string> config_;
  DeviceSize device_;
  bool json_ = false;
  bool verbose_ = false;
};

}  // namespace

std::unique_ptr<Command> make_replay_command() { return std::make_unique<ReplayCommand>(); }

}  // namespace cachalot::tools
