#include "tools/simulation_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/bytes.h"
#include "simulator/gpu_models.h"

namespace cachalot::tools {
namespace {

using nlohmann::json;

std::string bytes_text(const json& bytes) { return format_bytes(bytes.get<std::size_t>()); }

template <typename... Arguments>
std::string line(std::string_view name, fmt::format_string<Arguments...> format, Arguments&&... arguments) {
  return fmt::format("  {:<14}{}\n", name, fmt::format(format, std::forward<Arguments>(arguments)...));
}

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
  if (history.is_string()) return line("", "(no places, no trace: the program records memory history itself)");
  return history.at("cut") ? line("", "(the history was cut: its last events only)") : "";
}

std::string used_text(const json& torch) {
  std::string text = line("used", "peak {}", bytes_text(torch.at("peak_allocated_bytes")));
  if (const json& peak = torch.at("peak"); !peak.is_null()) {
    text += line("peak at", "event {} of {}: {}", peak.at("event").get<std::size_t>(),
                 torch.at("history").at("events").get<std::size_t>(), peak.at("at").get<std::string>());
    for (const json& site : peak.at("sites")) {
      text += line("", "{:>12} in {:>5} allocations: {}", bytes_text(site.at("bytes")),
                   site.at("allocations").get<std::size_t>(), site.at("at").get<std::string>());
    }
  }
  return text + history_text(torch.at("history"));
}

std::string reserved_text(const json& torch) {
  const auto reserved = torch.at("peak_reserved_bytes").get<double>();
  const auto allocated = torch.at("peak_allocated_bytes").get<double>();
  if (allocated == 0) return "";  // it ran out of memory before it had any
  return line("reserved", "peak {}, {:.3f} times the used: {:.1f} % is fragmentation and cache",
              bytes_text(torch.at("peak_reserved_bytes")), reserved / allocated, 100 * (1 - allocated / reserved));
}

std::string calls_text(const json& device) {
  std::string text;
  for (const auto& [name, count] : device.at("calls").items()) {
    text += fmt::format("{}{} {}", text.empty() ? "" : ", ", count.get<std::size_t>(), name);
  }
  return line("driver calls", "{}; {:.1f} ms of simulated time in them", text,
              device.at("driver_us").get<double>() / 1e3);
}

// The GPUs of the table that hold so much, the smallest first.
std::string gpus_for(std::size_t bytes) {
  std::vector<simulator::GpuModel> models(simulator::gpu_models().begin(), simulator::gpu_models().end());
  std::ranges::stable_sort(models, {}, &simulator::GpuModel::memory_bytes);
  std::string keys;
  for (const simulator::GpuModel& model : models) {
    if (model.memory_bytes >= bytes) keys += fmt::format("{}{}", keys.empty() ? "" : ", ", model.key);
  }
  return keys.empty() ? "no GPU of the table" : keys;
}

std::string ran_out(const json& where, std::string_view at) {
  return line("fits", "NO: out of memory{}, asking for {} with {} free", at, bytes_text(where.at("bytes")),
              bytes_text(where.at("free_bytes")));
}

// PyTorch counts; its history, where there is one, knows the place.
std::string ran_out_in(const json& torch) {
  const json& oom = torch.at("first_oom");
  if (!oom.is_null()) return ran_out(oom, " at " + oom.at("at").get<std::string>());
  return line("fits", "NO: out of memory, {} times; where is not known", torch.at("ooms").get<std::size_t>());
}

std::string verdict(const json& device, const json* torch) {
  const json& failure = device.at("first_failure");
  if (torch != nullptr && torch->at("ooms") > 0) return ran_out_in(*torch);
  if (torch == nullptr && !failure.is_null()) {
    return ran_out(failure, fmt::format(" at allocation {}", failure.at("allocation").get<std::size_t>()));
  }
  const auto peak = device.at("peak_used_bytes").get<std::size_t>();
  const auto total = device.at("total_bytes").get<std::size_t>();
  std::string text = line("fits", "yes, with {} to spare", format_bytes(total - peak));
  if (!failure.is_null()) {
    text += line("", "but tightly: {} times the device had no more and PyTorch gave back its cache",
                 device.at("failed_allocations").get<std::size_t>());
  }
  return text + line("fits on", "{}", gpus_for(peak));
}

std::string device_text(const ProcessReport& report, const json& device) {
  const json* const torch = torch_of(report, device);
  std::string text = fmt::format("device {} of process {}: {}, {}\n", device.at("device").get<int>(), report.process,
                                 device.at("name").get<std::string>(), bytes_text(device.at("total_bytes")));
  if (torch != nullptr) text += used_text(*torch) + reserved_text(*torch);
  text += line("on the device", "peak {} at allocation {} of {}", bytes_text(device.at("peak_used_bytes")),
               device.at("peak").at("allocation").get<std::size_t>(), device.at("allocations").get<std::size_t>());
  return text + calls_text(device) + verdict(device, torch);
}

}  // namespace

std::string to_text(const Simulation& simulation) {
  std::string text;
  for (const ProcessReport& report : simulation.processes) {
    if (report.driver.is_null()) continue;
    for (const json& device : report.driver.at("devices")) {
      if (device.at("allocations") > 0) text += device_text(report, device);
    }
  }
  if (text.empty()) text = "no process of the program used the GPU's memory\n";
  if (simulation.exit_code != 0) text += fmt::format("the program ended with exit code {}\n", simulation.exit_code);
  return text;
}

std::string to_json(const Simulation& simulation) {
  json processes = json::array();
  for (const ProcessReport& report : simulation.processes) {
    processes.push_back({{"process", report.process}, {"driver", report.driver}, {"torch", report.torch}});
  }
  return json{{"exit_code", simulation.exit_code}, {"processes", processes}}.dump();
}

}  // namespace cachalot::tools
