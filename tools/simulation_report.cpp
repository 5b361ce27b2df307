#include "tools/simulation_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>

#include "base/bytes.h"
#include "simulator/gpu_models.h"
#include "tools/simulation_files.h"
#include "tools/text_layout.h"

namespace cachalot::tools {
namespace {

using nlohmann::json;

// Below a large segment of PyTorch's, what is reserved says how segments are rounded, and nothing of the program.
constexpr std::size_t kLargeSegment = 20 * kMiB;

std::size_t number(const json& object, const char* key) { return object.at(key).get<std::size_t>(); }
std::string bytes_of(const json& object, const char* key) { return format_bytes(number(object, key)); }
std::string word(const json& object, const char* key) { return object.at(key).get<std::string>(); }

std::string figure(std::string_view name, std::string_view value) { return labelled_line(name, value, 13); }

// The torch report of this device, or null: the program does without PyTorch, or not on this device.
const json* torch_of(const ProcessReport& report, const json& device) {
  if (report.torch.is_null()) return nullptr;
  for (const json& torch : report.torch.at("devices")) {
    if (torch.at("device") == device.at("device")) return &torch;
  }
  return nullptr;
}

// What keeps the history from telling all: "program's own" instead of its figures, or its end.
std::string history_text(const json& history) {
  if (history.is_string()) {
    return figure("", "(the program records memory history itself, so that places in the program are not known)");
  }
  if (!history.at("cut")) return "";
  return figure("", fmt::format("(only the last {} events are known: the peak may have been earlier, elsewhere)",
                                with_commas(number(history, "events"))));
}

// "train.py:8 in <module>", but "outside Python code …" without "at".
std::string at_place(const std::string& place) { return place.starts_with("outside") ? place : "at " + place; }

std::string sites_text(const json& sites) {
  std::string text;
  std::size_t width = 0;
  for (const json& site : sites) width = std::max(width, std::to_string(number(site, "allocations")).size());
  for (const json& site : sites) {
    const std::size_t allocations = number(site, "allocations");
    text += figure("", fmt::format("{:>12} in {:>{}} allocation{} {}", bytes_of(site, "bytes"), allocations, width,
                                   allocations == 1 ? " " : "s", at_place(word(site, "at"))));
  }
  return text;
}

std::string used_text(const json& torch) {
  std::string text = figure("used", bytes_of(torch, "peak_allocated_bytes") + " at the peak");
  if (const json& peak = torch.at("peak"); !peak.is_null()) {
    text += figure("peak at", fmt::format("{} (event {} of {})", word(peak, "at"), with_commas(number(peak, "event")),
                                          with_commas(number(torch.at("history"), "events"))));
    text += sites_text(peak.at("sites"));
  }
  return text + history_text(torch.at("history"));
}

std::string reserved_text(const json& torch) {
  const std::size_t reserved = number(torch, "peak_reserved_bytes");
  const std::size_t used = number(torch, "peak_allocated_bytes");
  std::string text = format_bytes(reserved) + " at the peak";
  if (reserved < used) {
    text += ", less than used: memory that sleeps is used, but not reserved";
  } else if (used >= kLargeSegment) {
    text += fmt::format(", of which fragmentation and cached memory are {:.1f} %",
                        100 * (1 - static_cast<double>(used) / static_cast<double>(reserved)));
  }
  return figure("reserved", text);
}

std::string driver_calls_text(const json& device) {
  std::string calls;
  for (const auto& [name, count] : device.at("calls").items()) {
    calls += fmt::format("{}{} {}", calls.empty() ? "" : ", ", with_commas(count.get<std::size_t>()), name);
  }
  const double ms = device.at("driver_us").get<double>() / 1e3;
  return figure("driver calls", fmt::format("{}; they take {:.1f} ms of simulated time", calls, ms)) +
         figure("peak at call", fmt::format("allocation {} of {}", number(device.at("peak"), "allocation"),
                                            number(device, "allocations")));
}

// The GPUs of the table that hold so much, the smallest first.
std::string gpus_for(std::size_t bytes) {
  std::vector<simulator::GpuModel> models(simulator::gpu_models().begin(), simulator::gpu_models().end());
  std::ranges::stable_sort(models, {}, &simulator::GpuModel::memory_bytes);
  std::string keys;
  for (const simulator::GpuModel& model : models) {
    if (model.memory_bytes >= bytes) keys += fmt::format("{}{}", keys.empty() ? "" : ", ", model.key);
  }
  return keys.empty() ? "no GPU that is known here" : keys;
}

// A request that is smaller than what is free fails because PyTorch asks the GPU for a whole segment.
std::string ran_out(const json& where, const std::string& at, const Style& style) {
  const std::size_t bytes = number(where, "bytes");
  const std::size_t free = number(where, "free_bytes");
  const char* const rounding = bytes <= free ? " (rounded up to a segment)" : "";
  return figure("fits", style.bad("NO") + fmt::format(": out of memory{}, asking for {}{} with {} free", at,
                                                      format_bytes(bytes), rounding, format_bytes(free)));
}

// PyTorch counts; its history, where there is one, knows the place.
std::string ran_out_in(const json& torch, const Style& style) {
  const json& oom = torch.at("first_oom");
  if (!oom.is_null()) return ran_out(oom, " " + at_place(word(oom, "at")), style);
  return figure("fits", style.bad("NO") + fmt::format(": out of memory, {}; the place in the program is not known",
                                                      times_text(number(torch, "ooms"))));
}

// How close it was: PyTorch gives its cache back where the device has no more.
std::string tightness_text(const json& device) {
  if (device.at("first_failure").is_null()) return "";
  return figure("", fmt::format("but only just: PyTorch had to give back its cached memory {}",
                                times_text(number(device, "failed_allocations"))));
}

std::string without_last_newline(std::string text) {
  text.pop_back();
  return text;
}

// What other processes of the run took of the same device counts as well.
std::string device_peak_text(const json& device) {
  std::string text = bytes_of(device, "peak_used_bytes") + " at the peak";
  if (number(device, "common_peak_used_bytes") > number(device, "peak_used_bytes"))
    text += ", " + bytes_of(device, "common_peak_used_bytes") + " of all processes together";
  return figure("on the device", text);
}

std::string fits_text(const json& device, bool failed, const Style& style) {
  const std::size_t peak = number(device, "common_peak_used_bytes");
  const std::string spare = format_bytes(number(device, "total_bytes") - peak);
  if (failed) {
    return figure("fits", fmt::format("yes until the program failed, with {} to spare; what it would have used after "
                                      "that is not known",
                                      spare));
  }
  return figure("fits", style.good("yes") + fmt::format(", with {} to spare", spare)) + tightness_text(device) +
         figure("fits on", without_last_newline(wrapped(gpus_for(peak), 16)));
}

std::string verdict(const json& device, const json* torch, bool failed, const Style& style) {
  const json& failure = device.at("first_failure");
  if (torch != nullptr && number(*torch, "ooms") > 0) return ran_out_in(*torch, style);
  if (torch == nullptr && !failure.is_null()) {
    return ran_out(failure, fmt::format(" at allocation {}", number(failure, "allocation")), style);
  }
  return fits_text(device, failed, style);
}

std::string device_report(const ProcessReport& report, const json& device, const Simulation& simulation, bool verbose,
                          const Style& style) {
  const json* const torch = torch_of(report, device);
  std::string text = style.bold(fmt::format("device {} of process {}: {}, {}", number(device, "device"), report.process,
                                            word(device, "name"), bytes_of(device, "total_bytes"))) +
                     "\n";
  if (torch != nullptr) text += used_text(*torch);
  if (torch != nullptr && number(*torch, "peak_allocated_bytes") > 0) text += reserved_text(*torch);
  text += device_peak_text(device);
  if (verbose) text += driver_calls_text(device);
  return text + verdict(device, torch, simulation.exit_code != 0, style);
}

std::string stack_text(const json& lines) {
  std::string text;
  for (const json& line : lines) text += figure("", "  " + line.get<std::string>());
  return text;
}

std::string breach_text(const json& breach, const Style& style) {
  const std::size_t times = number(breach, "times");
  const std::string repeated = times == 1 ? "" : fmt::format(" ({})", times_text(times));
  std::string text = figure("broken", style.bad(word(breach, "text")) + repeated) + stack_text(breach.at("stack"));
  if (breach.contains("other_stack")) text += figure("", "the other call:") + stack_text(breach.at("other_stack"));
  return text;
}

// What the process did against CUDA's rules; nothing where nobody watched.
std::string rules_report(const ProcessReport& report, const Style& style) {
  const json& driver = report.driver;
  if (!driver.contains("breaches")) return "";
  std::string text = style.bold(fmt::format("CUDA's rules in process {}", report.process)) + "\n";
  for (const json& breach : driver.at("breaches")) text += breach_text(breach, style);
  for (const json& leak : driver.at("leaks"))
    text += figure("not freed", style.bad(word(leak, "text"))) + stack_text(leak.at("stack"));
  if (!breaks_rules(driver)) text += figure("broken", style.good("none"));
  for (const json& kept : driver.at("kept")) text += figure("kept", word(kept, "text") + ", until the process ends");
  return text;
}

// Where the program read values that nothing computed; nothing where computing was off.
std::string values_text(const json& torch) {
  const json& values = torch.at("values");
  if (values.is_null()) return "";
  const json& reads = values.at("unknown_reads");
  const std::string compiled =
      values.at("compiled") ? figure("", "(code of torch.compile computes nothing: its results are unknown)") : "";
  if (reads.empty()) return figure("values", "known, wherever the program read one") + compiled;
  std::size_t times = 0;
  for (const json& read : reads) times += number(read, "times");
  std::string text = figure(
      "values",
      fmt::format("unknown, where the program read them {}: what follows may differ on a GPU", times_text(times)));
  constexpr std::size_t kMostPlaces = 5;
  for (std::size_t i = 0; i < std::min(reads.size(), kMostPlaces); ++i) {
    text += figure("", fmt::format("a {} {} {}", word(reads[i], "how"), at_place(word(reads[i], "at")),
                                   times_text(number(reads[i], "times"))));
  }
  if (reads.size() > kMostPlaces) text += figure("", fmt::format("and {} more places", reads.size() - kMostPlaces));
  return text + compiled;
}

std::string ending_text(int exit_code, const Style& style) {
  if (exit_code == 0) return "";
  if (exit_code <= 128) return style.bad(fmt::format("the program failed with exit code {}", exit_code)) + "\n";
  const int signal = exit_code - 128;
  return style.bad(
             fmt::format("the program failed with exit code {}: signal {}, {}", exit_code, signal, strsignal(signal))) +
         "\n";
}

}  // namespace

std::string to_text(const Simulation& simulation, bool verbose, const Style& style) {
  std::string devices;
  for (const ProcessReport& report : simulation.processes) {
    if (report.driver.is_null()) continue;
    for (const json& device : report.driver.at("devices")) {
      if (number(device, "allocations") > 0) devices += device_report(report, device, simulation, verbose, style);
    }
    if (!report.torch.is_null() && !report.torch.at("devices").empty()) devices += values_text(report.torch);
  }
  if (devices.empty()) devices = "no process of the program used the GPU's memory\n";
  for (const ProcessReport& report : simulation.processes) {
    if (!report.driver.is_null()) devices += rules_report(report, style);
  }
  return ending_text(simulation.exit_code, style) + devices;
}

std::string to_json(const Simulation& simulation) {
  json processes = json::array();
  for (const ProcessReport& report : simulation.processes) {
    processes.push_back({{"process", report.process}, {"driver", report.driver}, {"torch", report.torch}});
  }
  return json{{"exit_code", simulation.exit_code}, {"processes", processes}}.dump();
}

}  // namespace cachalot::tools
