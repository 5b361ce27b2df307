#include "tools/report.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/bytes.h"
#include "tools/json_text.h"
#include "tools/text_layout.h"

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

std::string driver_time_text(const ReplayResult& result) {
  std::string total = fmt::format("{:.3f} ms", result.driver_us / 1000);
  if (result.background_us == 0) return total;
  return fmt::format("{}, of which allocations waited for {:.3f} ms", total, result.foreground_us / 1000);
}

std::string min_device_text(const ReplayResult& result) {
  return result.min_device_bytes ? bytes_text(*result.min_device_bytes) : "above 1 PiB";
}

}  // namespace

std::string trace_name(const std::string& path) {
  const std::string file = std::filesystem::path(path).filename().string();
  return file.substr(0, file.find('.'));
}

std::string to_text(const ReplayResult& result, const ReplayReportContents& contents, const Style& style) {
  std::string text = style.bold(result.trace) + "\n";
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
  text += labelled_line("simulated driver time", driver_time_text(result));
  text += labelled_line("host time", fmt::format("{:.1f} ns per event", result.ns_per_event));
  if (contents.min_device) text += labelled_line("smallest device", min_device_text(result));
  return contents.internals ? text + internals_text(result) : text;
}

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
  json["ooms"] = result.ooms;
  json["first_oom_event"] = nullptr;
  if (result.first_oom_event) json["first_oom_event"] = *result.first_oom_event;
  json["retries"] = result.retries;
  json["device_calls"] = calls;
  json["memory_calls"] = result.memory_calls;
  json["background_memory_calls"] = result.background_memory_calls;
  json["memory_calls_per_iteration"] = result.memory_calls_per_iteration;
  json["late_allocations"] = result.late_allocations;
  json["late_driver_allocations"] = result.late_driver_allocations;
  json["device_wide_synchronizations"] = result.device_wide_synchronizations;
  json["stream_waits"] = result.stream_waits;
  json["live_mappings"] = result.live_mappings;
  json["driver_us"] = result.driver_us;
  json["foreground_us"] = result.foreground_us;
  json["background_us"] = result.background_us;
  json["expandable_us"] = result.expandable_us;
  json["ns_per_event"] = result.ns_per_event;
  if (with_min_device) {
    json["min_device_bytes"] = nullptr;
    if (result.min_device_bytes) json["min_device_bytes"] = *result.min_device_bytes;
  }
  return text_of(json);
}

}  // namespace cachalot::tools
