// `cachalot replay`: plays recorded allocations through the allocator on a simulated device.
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "base/check.h"
#include "base/environment.h"
#include "policy/options_without_effect.h"
#include "tools/base/quoted.h"
#include "tools/base/text_layout.h"
#include "tools/commands/command.h"
#include "tools/commands/shared_options.h"
#include "tools/replay/replay.h"

namespace cachalot::tools {
namespace {

// The result of a replay, as text for people and as JSON for programs.
struct ReplayReportContents {
  bool min_device = false;  // the smallest device was looked for (ReplayOptions::find_min_device)
  bool internals = false;   // device calls, retries and other counts of the allocator's own work
};

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

// The allocator's own work, for those who work on it.
std::string internals_text(const ReplayResult& result) {
  std::string text;
  text += labelled_line("simulated work", fmt::format("{} us per allocation", result.work_us));
  text += labelled_line("retries", fmt::format("{} after the cache was given back", result.retries));
  text += labelled_line("device calls", calls_text(result));
  text += labelled_line("late allocations", late_text(result));
  text += labelled_line("device-wide waits", fmt::format("{}", result.device_wide_synchronizations));
  text += labelled_line("live mappings", fmt::format("{} at the end", result.live_mappings));
  return text;
}

std::string min_device_text(const ReplayResult& result) {
  return result.min_device_bytes ? bytes_text(*result.min_device_bytes) : "above 1 PiB";
}

// Returns a block of lines, one figure each.
std::string to_text(const ReplayResult& result, const ReplayReportContents& contents, const Style& style) {
  std::string text = style.bold(printable(result.trace)) + "\n";
  text += labelled_line("events", with_commas(result.events));
  text += labelled_line("peak requested", bytes_text(result.peak_requested_bytes));
  text += labelled_line("peak allocated", bytes_text(result.peak_allocated_bytes));
  text += labelled_line("peak reserved", bytes_text(result.peak_reserved_bytes));
  text += labelled_line("peak on the device", bytes_text(result.peak_driver_bytes));
  text += labelled_line("reserved / requested", fmt::format("{:.4f}", result.ratio));
  text += labelled_line("internal fragmentation",
                        percent(result.internal_fragmentation) + " of the allocated memory, when most was reserved");
  text += labelled_line("external fragmentation",
                        percent(result.external_fragmentation) + " of the free memory, when most was reserved");
  text += labelled_line("failed allocations", failures_text(result));
  if (result.check_hazards) text += labelled_line("hazards", "none found");
  if (contents.internals || result.memory_calls_per_iteration.size() > 1) {
    text += labelled_line("memory calls", memory_calls_text(result));
  }
  text += labelled_line("simulated driver time", fmt::format("{:.3f} ms", result.driver_us / 1000));
  text += labelled_line("host time", fmt::format("{:.1f} ns per event", result.ns_per_event));
  if (contents.min_device) text += labelled_line("smallest device", min_device_text(result));
  return contents.internals ? text + internals_text(result) : text;
}

// Returns one line for each trace under a heading.
std::string summary_table(const std::vector<ReplayResult>& results, const ReplayReportContents& contents,
                          const Style& style) {
  std::size_t name_width = 5;
  for (const ReplayResult& result : results) name_width = std::max(name_width, trace_name(result.trace).size());
  std::string heading = fmt::format("{:<{}} {:>10} {:>14} {:>13} {:>19} {:>15} {:>15} {:>7} {:>10} {:>14}", "trace",
                                    name_width, "events", "requested MiB", "reserved MiB", "reserved/requested",
                                    "internal fragm.", "external fragm.", "failed", "driver ms", "host ns/event");
  if (contents.min_device) heading += fmt::format(" {:>19}", "smallest device MiB");
  std::string table = style.bold(heading) + "\n";
  for (const ReplayResult& result : results) {
    table +=
        fmt::format("{:<{}} {:>10} {:>14} {:>13} {:>19.4f} {:>15} {:>15} {:>7} {:>10.3f} {:>14.1f}",
                    trace_name(result.trace), name_width, with_commas(result.events), mib(result.peak_requested_bytes),
                    mib(result.peak_reserved_bytes), result.ratio, percent(result.internal_fragmentation),
                    percent(result.external_fragmentation), result.ooms, result.driver_us / 1000, result.ns_per_event);
    if (contents.min_device) {
      table += fmt::format(" {:>19}", result.min_device_bytes ? mib(*result.min_device_bytes) : "> 1 PiB");
    }
    table += '\n';
  }
  return table;
}

// Returns a JSON object on one line, without the newline.
std::string to_json(const ReplayResult& result, bool with_min_device) {
  nlohmann::ordered_json calls;
  for (const CallCount& call : result.device_calls) calls[std::string(call.name)] = call.count;
  nlohmann::ordered_json json;
  json["trace"] = result.trace;
  json["events"] = result.events;
  json["work_us"] = result.work_us;
  json["check_hazards"] = result.check_hazards;
  json["peak_requested_bytes"] = result.peak_requested_bytes;
  json["peak_allocated_bytes"] = result.peak_allocated_bytes;
  json["peak_reserved_bytes"] = result.peak_reserved_bytes;
  json["peak_driver_bytes"] = result.peak_driver_bytes;
  json["ratio"] = result.ratio;
  json["internal_fragmentation"] = result.internal_fragmentation;
  json["external_fragmentation"] = result.external_fragmentation;
  json["failed_requests"] = result.failed_requests;
  json["ooms"] = result.ooms;
  json["first_oom_event"] = or_null(result.first_oom_event);
  json["retries"] = result.retries;
  json["device_calls"] = calls;
  json["memory_calls"] = result.memory_calls;
  json["memory_calls_per_iteration"] = result.memory_calls_per_iteration;
  json["driver_us_per_iteration"] = result.driver_us_per_iteration;
  json["ratio_per_iteration"] = result.ratio_per_iteration;
  json["late_allocations"] = result.late_allocations;
  json["late_driver_allocations"] = result.late_driver_allocations;
  json["device_wide_synchronizations"] = result.device_wide_synchronizations;
  json["stream_waits"] = result.stream_waits;
  json["live_mappings"] = result.live_mappings;
  json["driver_us"] = result.driver_us;
  json["expandable_us"] = result.expandable_us;
  json["ns_per_event"] = result.ns_per_event;
  if (with_min_device) json["min_device_bytes"] = or_null(result.min_device_bytes);
  return tools::text_of(json);
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
      print(json_ ? to_json(results.back(), options_.find_min_device) + "\n"
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

  ReplayReportContents report_contents() const {
    return {.min_device = options_.find_min_device, .internals = verbose_};
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
