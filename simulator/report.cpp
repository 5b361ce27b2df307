#include "simulator/report.h"

#include <fmt/format.h>

#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>

#include "cachalot/errors.h"

namespace cachalot::simulator {
namespace {

std::FILE* open_file(const char* variable, const std::string& path) {
  if (path.empty()) return nullptr;
  if (path == "-") return stderr;
  std::FILE* file = std::fopen(path.c_str(), "we");
  if (!file) throw InvalidArgument(fmt::format("{}: '{}' cannot be written: {}", variable, path, std::strerror(errno)));
  return file;
}

}  // namespace

void Report::open(const std::string& log_path, const std::string& report_path, int devices) {
  log_ = open_file("CACHALOT_SIM_LOG", log_path);
  report_ = open_file("CACHALOT_SIM_REPORT", report_path);
  summaries_.resize(static_cast<std::size_t>(devices));
}

void Report::log(int device, const std::vector<LoggedCall>& calls) {
  for (const LoggedCall& call : calls) {
    fmt::print(log_, "{} {} {} {:#x} {} {}\n", call.clock_ns, device, to_string(call.call), call.argument, call.bytes,
               call.failed ? "failed" : "ok");
  }
}

void Report::note_allocation(const SimulatedDevice& device, const char* call, std::size_t bytes, bool worked) {
  Summary& summary = summaries_[static_cast<std::size_t>(device.index())];
  const Moment now{summary.allocations++, device.clock_ns()};
  const std::size_t used_bytes = device.used_bytes();
  if (used_bytes > summary.peak_used_bytes) {
    summary.peak_used_bytes = used_bytes;
    summary.peak = now;
  }
  if (worked) return;
  ++summary.failures;
  if (!summary.first_failure) summary.first_failure = {now, call, bytes, device.properties().total_bytes - used_bytes};
}

void Report::write(const std::vector<const SimulatedDevice*>& devices) {
  auto all = nlohmann::ordered_json::array();
  for (const SimulatedDevice* device : devices) {
    const Summary& summary = summaries_[static_cast<std::size_t>(device->index())];
    nlohmann::ordered_json calls;
    for (std::size_t i = 0; i < kDeviceCallCount; ++i) {
      const auto call = static_cast<DeviceCall>(i);
      if (device->count(call) > 0) calls[to_string(call)] = device->count(call);
    }
    nlohmann::ordered_json failure;
    if (const auto& first = summary.first_failure) {
      failure = {{"call", first->call},
                 {"bytes", first->bytes},
                 {"free_bytes", first->free_bytes},
                 {"allocation", first->moment.ordinal},
                 {"clock_ns", first->moment.clock_ns}};
    }
    all.push_back({{"device", device->index()},
                   {"name", device->properties().name},
                   {"total_bytes", device->properties().total_bytes},
                   {"used_bytes", device->used_bytes()},
                   {"peak_used_bytes", device->peak_used_bytes()},
                   {"peak", {{"allocation", summary.peak.ordinal}, {"clock_ns", summary.peak.clock_ns}}},
                   {"allocations", summary.allocations},
                   {"failed_allocations", summary.failures},
                   {"first_failure", failure},
                   {"calls", calls},
                   {"driver_us", device->driver_us()},
                   {"clock_ns", device->clock_ns()}});
  }
  fmt::print(report_, "{}\n", nlohmann::ordered_json{{"devices", all}}.dump(2));
  std::fflush(report_);
}

}  // namespace cachalot::simulator
