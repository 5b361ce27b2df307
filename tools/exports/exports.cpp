#include "tools/exports/exports.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/check.h"
#include "base/suggestions.h"
#include "cachalot/errors.h"
#include "tools/history/allocations.h"
#include "tools/text_layout.h"

namespace cachalot::tools {

std::string json_string(std::string_view text) { return text_of(nlohmann::ordered_json(text)); }

std::string utf8_of(std::string_view text) {
  const bool is_ascii = std::ranges::all_of(text, [](char c) { return static_cast<unsigned char>(c) < 0x80; });
  if (is_ascii) return std::string(text);
  return nlohmann::json::parse(json_string(text)).get<std::string>();
}

std::string place_text(Sites& sites, StackId stack) {
  return stack == 0 ? "(no call stack was recorded)" : utf8_of(sites.text_of(sites.place_of(stack)));
}

std::vector<const DeviceHistory*> devices_of(const History& history, const ExportOptions& options) {
  std::vector<const DeviceHistory*> devices;
  for (const DeviceHistory& device : history.devices) {
    if (!options.device || device.device == *options.device) devices.push_back(&device);
  }
  CACHALOT_REQUIRE(!devices.empty() || !options.device, "{}: the history has no device {}", history.path,
                   *options.device);
  return devices;
}

const DeviceHistory& only_device_of(const History& history, const ExportOptions& options, std::string_view format) {
  const std::vector<const DeviceHistory*> devices = devices_of(history, options);
  CACHALOT_REQUIRE(!devices.empty(), "{}: the history has no device", history.path);
  CACHALOT_REQUIRE(devices.size() == 1, "{}: the history has {} devices, and {} has one: name it with --device",
                   history.path, devices.size(), format);
  return *devices.front();
}

// A history as a trace of ours (trace_reader.h).
namespace {

// A pool's memory serves that pool alone, as in trace_of: each pair of stream and pool is a stream of the trace. The
// default stream with the default pool is stream 0.
class StreamNumbers {
 public:
  std::size_t operator[](const Allocation& allocation) {
    return numbers_.try_emplace({allocation.pool, allocation.stream}, numbers_.size()).first->second;
  }

 private:
  std::map<std::pair<std::uint16_t, std::uint16_t>, std::size_t> numbers_{{{0, 0}, 0}};
};

}  // namespace

void write_trace_text(const History& history, const ExportOptions& options, OutputFile& out) {
  const DeviceHistory& device = only_device_of(history, options, "a trace");
  const std::vector<Allocation> allocations = allocations_of(device);
  CACHALOT_REQUIRE(!allocations.empty(), "{}: the history has no allocation", history.path);
  StreamNumbers streams;
  for (const AllocationStep& step : steps_of(allocations)) {
    const Allocation& allocation = allocations[step.allocation];
    if (step.is_free) {
      out.print("f,{}\n", step.allocation + 1);
    } else {
      out.print("a,{},{},{}\n", step.allocation + 1, allocation.bytes, streams[allocation]);
    }
  }
}

// A history as the log of RMM's logging_resource_adaptor, which RMM's replay benchmark plays. It has no pools.
namespace {

using Action = HistoryEvent::Action;

constexpr int kThread = 1;  // a history does not say which thread it was

// The log has the time of day; that of a history without times counts from midnight.
struct TimeOfDay {
  std::uint64_t hours, minutes, seconds, microseconds;

  explicit TimeOfDay(std::int64_t time_us) {
    constexpr std::int64_t kDay = std::int64_t{24} * 3600 * 1'000'000;
    const auto of_day = static_cast<std::uint64_t>((time_us % kDay + kDay) % kDay);
    microseconds = of_day % 1'000'000;
    seconds = of_day / 1'000'000 % 60;
    minutes = of_day / 60'000'000 % 60;
    hours = of_day / 3'600'000'000;
  }
};

class RmmWriter {
 public:
  RmmWriter(const History& history, const DeviceHistory& device, OutputFile& out)
      : history_(history), device_(device), out_(out) {}

  void write() {
    out_.write("Thread,Time,Action,Pointer,Size,Stream\n");
    const std::vector<Allocation> allocations = allocations_of(device_);
    for (const AllocationStep& step : steps_of(allocations)) {
      write_failures(step.event == AllocationStep::kBefore ? 0 : step.event);
      const Allocation& allocation = allocations[step.allocation];
      begin_line(step.event, step.is_free ? "free" : "allocate");
      out_.print("0x{:x},{}", allocation.address, allocation.bytes);
      end_line(allocation.stream);
    }
    write_failures(device_.events.size());
  }

 private:
  // Those before the event that have not been written.
  void write_failures(std::size_t event) {
    for (; next_failure_ < event; ++next_failure_) {
      const HistoryEvent& failure = device_.events[next_failure_];
      if (failure.action != Action::oom) continue;
      begin_line(next_failure_, "allocate failure");
      out_.print("(nil),{}", failure.bytes);
      end_line(failure.stream);
    }
  }

  void begin_line(std::size_t event, std::string_view action) {
    if (event == AllocationStep::kBefore) event = 0;
    const TimeOfDay time(event < device_.events.size() ? device_.events[event].time_us : 0);
    out_.print("{},{:02}:{:02}:{:02}.{:06},{},", kThread, time.hours, time.minutes, time.seconds, time.microseconds,
               action);
  }

  void end_line(std::uint16_t stream) {
    const std::uint64_t handle = history_.streams[stream];
    handle == 0 ? out_.print(",0\n") : out_.print(",0x{:x}\n", handle);
  }

  const History& history_;
  const DeviceHistory& device_;
  OutputFile& out_;
  std::size_t next_failure_ = 0;
};

}  // namespace

void write_rmm_csv(const History& history, const ExportOptions& options, OutputFile& out) {
  RmmWriter(history, only_device_of(history, options, "RMM's log"), out).write();
}

namespace {

// A file's name has the first ending that fits; any may be followed by .gz.
constexpr std::array kFormats = {
    ExportFormat{"torch", {".pickle", ".pkl"}, write_torch_snapshot},
    ExportFormat{"perfetto", {".perfetto.json", ".trace.json"}, write_perfetto},
    ExportFormat{"json", {".json", ""}, write_history_json},
    ExportFormat{"rmm", {".rmm.csv", ".rmm"}, write_rmm_csv},
    ExportFormat{"trace", {".trace.csv", ".trace"}, write_trace_text},
};

}  // namespace

std::string export_format_names() {
  std::string names;
  for (const ExportFormat& format : kFormats) names += (names.empty() ? "" : ", ") + std::string(format.name);
  return names;
}

const ExportFormat& export_format(std::string_view name) {
  const auto* const found = std::ranges::find(kFormats, name, &ExportFormat::name);
  if (found != kFormats.end()) return *found;
  std::vector<std::string_view> names;
  names.reserve(kFormats.size());
  for (const ExportFormat& format : kFormats) names.push_back(format.name);
  const std::string asked = did_you_mean(name, names);
  throw InvalidArgument(fmt::format("--to {}: there is no such format{}{}; the formats are {}", name,
                                    asked.empty() ? "" : "; ", asked, export_format_names()));
}

const ExportFormat& export_format_of_file(std::string_view path) {
  std::string_view name = path;
  if (name.ends_with(".gz")) name.remove_suffix(3);
  for (const ExportFormat& format : kFormats) {
    for (const std::string_view ending : format.endings) {
      if (!ending.empty() && name.ends_with(ending)) return format;
    }
  }
  throw InvalidArgument(
      fmt::format("-o {}: no format has files that end so; name one with --to: {}", path, export_format_names()));
}

}  // namespace cachalot::tools
