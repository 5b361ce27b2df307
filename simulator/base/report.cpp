#include "simulator/base/report.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <set>

#include "base/format.h"
#include "base/json_writer.h"
#include "base/locks.h"
#include "cachalot/errors.h"
#include "simulator/base/end_of_process.h"
#include "simulator/base/watch.h"
#include "simulator/libraries/cudnn_planner.h"
#include "simulator/libraries/functions.h"
#include "simulator/nccl/communicator.h"

namespace cachalot::simulator {
namespace {

std::FILE* open_file(const char* setting, const std::string& path) {
  if (path.empty()) return nullptr;
  if (path == "-") return stderr;
  std::FILE* file = std::fopen(path.c_str(), "we");
  if (!file) {
    throw InvalidArgument(
        formatted("CACHALOT_SIM: option {}: '{}' cannot be written: {}", setting, path, std::strerror(errno)));
  }
  return file;
}

std::int64_t now_us() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::microseconds>(now).count();
}

Mutex& early_mutex() {
  static auto& mutex = *new Mutex;
  return mutex;
}

}  // namespace

void note_once(std::string_view text) {
  static auto& mutex = *new Mutex;
  static auto& noted = *new std::set<std::string, std::less<>>;
  const Lock lock(mutex);
  if (!noted.emplace(text).second) return;
  print_error("cachalot simulator: {}\n", text);
}

void note_not_simulated(std::string_view name) { note_once(formatted("{} is not simulated", name)); }

void Report::open(const std::string& log_path, const std::string& report_path,
                  const std::vector<int>& physical_devices) {
  log_ = open_file("log", log_path);
  report_ = open_file("report", report_path);
  const Lock lock(early_mutex());
  for (const int device : physical_devices) {
    Summary& summary = summaries_.emplace_back();
    summary.physical_device = device;
    if (const auto found = early_questions().find(device); found != early_questions().end())
      summary.questions.push_back(found->second);
  }
}

std::map<int, Report::Question>& Report::early_questions() {
  static auto& questions = *new std::map<int, Question>;
  return questions;
}

void Report::log(int device, const std::vector<LoggedCall>& calls) {
  for (const LoggedCall& call : calls) {
    const std::string line = formatted("{} {} {} {:#x} {} {}\n", call.clock_ns, device, to_string(call.call),
                                       call.argument, call.bytes, call.failed ? "failed" : "ok");
    std::fputs(line.c_str(), log_);
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
  if (!summary.first_failure) summary.first_failure = {now, call, bytes, device.free_bytes()};
}

void Report::note_memory_info(int device, std::size_t free_bytes) {
  constexpr std::size_t kMostQuestions = 4096;
  Summary& summary = summaries_[static_cast<std::size_t>(device)];
  std::vector<Question>& questions = summary.questions;
  if (!questions.empty() && questions.back().ordinal == summary.allocations) questions.pop_back();
  if (questions.size() == kMostQuestions) return;
  questions.push_back({.time_us = now_us(), .free_bytes = free_bytes, .ordinal = summary.allocations});
}

void Report::note_early_memory_info(int physical_device, std::size_t free_bytes) {
  const Lock lock(early_mutex());
  early_questions()[physical_device] = {.time_us = now_us(), .free_bytes = free_bytes};
}

void Report::note_nccl_memory(int device, NcclMemory whose, std::size_t bytes) {
  Summary& summary = summaries_[static_cast<std::size_t>(device)];
  summary.nccl_bytes += bytes;
  summary.nccl_peak_bytes = std::max(summary.nccl_peak_bytes, summary.nccl_bytes);
  if (whose == NcclMemory::buffers) summary.nccl_buffer_bytes += bytes;
  summary.nccl_buffer_peak_bytes = std::max(summary.nccl_buffer_peak_bytes, summary.nccl_buffer_bytes);
}

void Report::note_nccl_memory_freed(int device, NcclMemory whose, std::size_t bytes) {
  Summary& summary = summaries_[static_cast<std::size_t>(device)];
  summary.nccl_bytes -= std::min(summary.nccl_bytes, bytes);
  if (whose == NcclMemory::buffers) summary.nccl_buffer_bytes -= std::min(summary.nccl_buffer_bytes, bytes);
}

void Report::note_context(int device, const ContextCharge& charge, const Spread& spread) {
  Summary& summary = summaries_[static_cast<std::size_t>(device)];
  summary.context = charge;
  summary.context_spread = spread;
}

std::string Report::text(const std::vector<const SimulatedDevice*>& devices, const Watch& watch,
                         const std::optional<HostAccess>& host_access, bool is_final) const {
  JsonWriter json;
  json.begin_object().key("devices").list(devices, [&](JsonWriter&, const SimulatedDevice* device) {
    write(json, *device, summaries_[static_cast<std::size_t>(device->index())]);
  });
  json.key("cudnn");
  write_cudnn_use(json);
  write_unknown_workspaces(json.key("unknown_workspaces"));
  write(json.key("host_access"), host_access);
  const std::optional<int> status = exit_status();
  json.key("exit_status");
  status ? json.value(*status) : json.value(nullptr);
  json.member("is_final", is_final);
  if (watch.is_on()) watch.write(json);
  return json.end_object().take();
}

void Report::write(const std::vector<const SimulatedDevice*>& devices, const Watch& watch,
                   const std::optional<HostAccess>& host_access) {
  replace_file(text(devices, watch, host_access, /*is_final=*/true));
  is_written_ = true;
}

void Report::write_so_far(const std::vector<const SimulatedDevice*>& devices, const Watch& watch) {
  std::uint64_t allocations = 0;
  for (const Summary& summary : summaries_) allocations += summary.allocations;
  if (report_ == stderr || allocations == allocations_so_far_) return;
  allocations_so_far_ = allocations;
  replace_file(text(devices, watch, std::nullopt, /*is_final=*/false));
}

// One call writes all of it: SIGKILL leaves the old report or the new one. A shorter one is filled up with blanks.
void Report::replace_file(std::string text) {
  text.resize(std::max(text.size() + 1, file_bytes_), ' ');
  text.back() = '\n';
  if (report_ == stderr) {
    std::fputs(text.c_str(), report_);
  } else {
    [[maybe_unused]] const ssize_t written = pwrite(fileno(report_), text.data(), text.size(), 0);
  }
  file_bytes_ = text.size();
}

void Report::write(JsonWriter& json, const SimulatedDevice& device, const Summary& summary) {
  json.begin_object().member("device", device.index()).member("physical_device", summary.physical_device);
  json.member("name", device.properties().name).member("total_bytes", device.properties().total_bytes);
  json.member("used_bytes", device.used_bytes()).member("peak_used_bytes", device.peak_used_bytes());
  json.key("peak").begin_object();
  json.member("allocation", summary.peak.ordinal).member("clock_ns", summary.peak.clock_ns).end_object();
  json.key("nccl").begin_object();
  json.member("used_bytes", summary.nccl_bytes).member("peak_used_bytes", summary.nccl_peak_bytes);
  json.member("peak_buffer_bytes", summary.nccl_buffer_peak_bytes).end_object();
  const ManagedMemory managed = device.managed();
  json.key("managed").begin_object();
  json.member("used_bytes", managed.used_bytes).member("peak_used_bytes", managed.peak_used_bytes);
  json.member("at_peak_bytes", managed.at_peak_bytes).member("peak_host_bytes", managed.peak_host_bytes).end_object();
  json.member("allocations", summary.allocations).member("failed_allocations", summary.failures);
  json.member("peak_with_context_bytes", device.peak_with_driver_bytes());
  write(json, summary.context);
  Spread spread = summary.context_spread;
  spread += nccl::spread_of(summary.nccl_buffer_peak_bytes);
  write(json.key("spread").begin_object(), spread);
  write(json.key("context").begin_object(), summary.context_spread);
  json.end_object().end_object();
  json.key("first_failure");
  write(json, summary.first_failure);
  write(json.key("memory_info"), summary.questions);
  json.key("calls").begin_object();
  for (std::size_t i = 0; i < kDeviceCallCount; ++i) {
    const auto call = static_cast<DeviceCall>(i);
    if (device.count(call) > 0) json.member(to_string(call), device.count(call));
  }
  json.end_object();
  json.member("driver_us", device.driver_us()).member("clock_ns", device.clock_ns()).end_object();
}

void Report::write(JsonWriter& json, const ContextCharge& charge) {
  json.member("context_bytes", charge.costs.context_bytes).key("library_bytes").begin_object();
  for (const ContextLibrary library : kContextLibraries) {
    if (charge.costs.of(library) > 0) json.member(to_string(library), charge.costs.of(library));
  }
  json.end_object().key("context_estimate");
  if (charge.estimate) {
    json.value(to_string(*charge.estimate));
  } else {
    json.value(nullptr);
  }
  json.key("limits").begin_object();
  json.member("bytes", charge.limit_bytes).member("stack_bytes", charge.limits.stack_bytes);
  json.member("heap_bytes", charge.limits.heap_bytes).member("printf_bytes", charge.limits.printf_bytes).end_object();
  json.key("graphs").begin_object();
  json.member("bytes", charge.graph_bytes).member("graphs", charge.graphs.graphs);
  json.member("kernel_nodes", charge.graphs.kernel_nodes).end_object();
  if (!charge.lack) return;
  json.key("context_lack").begin_object().member("for", charge.lack->what).member("bytes", charge.lack->bytes);
  json.member("free_bytes", charge.lack->free_bytes).end_object();
}

void Report::write(JsonWriter& json, const Spread& spread) {
  json.member("less_bytes", spread.less_bytes).member("more_bytes", spread.more_bytes);
}

void Report::write(JsonWriter& json, const std::optional<Failure>& failure) {
  if (!failure) {
    json.value(nullptr);
    return;
  }
  json.begin_object().member("call", failure->call).member("bytes", failure->bytes);
  json.member("free_bytes", failure->free_bytes).member("allocation", failure->moment.ordinal);
  json.member("clock_ns", failure->moment.clock_ns).end_object();
}

void Report::write(JsonWriter& json, const std::vector<Question>& questions) {
  json.list(questions, [](JsonWriter& one, const Question& question) {
    one.begin_object().member("time_us", question.time_us).member("free_bytes", question.free_bytes).end_object();
  });
}

void Report::write(JsonWriter& json, const std::optional<HostAccess>& access) {
  if (!access) {
    json.value(nullptr);
    return;
  }
  json.begin_object().member("address", access->address).member("device", access->device).end_object();
}

}  // namespace cachalot::simulator
