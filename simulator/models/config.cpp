#include "simulator/models/config.h"

#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <iterator>
#include <numeric>
#include <string_view>

#include "base/bytes.h"
#include "base/environment.h"
#include "base/format.h"
#include "cachalot/errors.h"
#include "simulator/device/address_space.h"
#include "simulator/device/simulation_settings.h"
#include "simulator/models/device_attributes.h"

namespace cachalot::simulator {
namespace {

constexpr int kMostDevices = 64;
constexpr std::size_t kSmallestAddressSpace = kGiB;
constexpr std::size_t kLargestAddressSpace = std::size_t{64} << 40;  // half of x86-64's

[[noreturn]] void refuse(std::string_view value, std::string_view rule) {
  throw InvalidArgument(formatted("'{:.60}' is not valid: {}", value, rule));
}

std::int64_t parse_integer(std::string_view text, std::int64_t least, std::int64_t most) {
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size() || value < least || value > most)
    refuse(text, formatted("it must be a whole number from {} to {}", least, most));
  return value;
}

std::size_t parse_bytes_between(std::string_view text, std::size_t least, std::size_t most) {
  const std::size_t bytes = parse_bytes(text);
  if (bytes < least || bytes > most)
    refuse(text, formatted("it must be from {} to {}", format_bytes(least), format_bytes(most)));
  return bytes;
}

// Returns whether the text is the second of two words.
bool is_second_of(std::string_view first, std::string_view second, std::string_view text) {
  if (text != first && text != second) refuse(text, formatted("it must be {} or {}", first, second));
  return text == second;
}

ContextRule parse_contexts(std::string_view text) {
  if (text == "none") return ContextRule::none;
  if (text == "documented") return ContextRule::documented;
  if (text == "all") return ContextRule::all;
  refuse(text, "it must be documented, all or none");
}

ContextCharge parse_context(std::string_view text, const GpuModel& gpu) {
  ContextCharge context;
  if (text == "model") {
    context.estimate = module_loading_of_environment();
    context.costs = estimated_context_costs(gpu, *context.estimate);
  } else if (text != "none") {
    context.costs.context_bytes = round_up(parse_context_bytes(text), kPhysicalUnit);
  }
  return context;
}

// "%p" in a file's name stands for the process, so that several can write.
std::string expand_path(std::string path) {
  for (std::size_t at = 0; (at = path.find("%p", at)) != std::string::npos;) {
    const std::string process = std::to_string(getpid());
    path.replace(at, 2, process);
    at += process.size();
  }
  return path;
}

Fault parse_fault(std::string_view text) {
  const auto colon = text.find(':');
  if (colon == std::string_view::npos) refuse(text, "a fault is CALL:N, CALL:N+ or either with :error=CODE");
  Fault fault;
  const std::string_view call = text.substr(0, colon);
  if (call != "any") fault.call = parse_call(call);
  std::string_view count = text.substr(colon + 1);
  if (const auto second = count.find(':'); second != std::string_view::npos) {
    std::string_view error = count.substr(second + 1);
    count = count.substr(0, second);
    if (!error.starts_with("error=")) refuse(text, "behind the count only :error=CODE may follow");
    fault.code = static_cast<int>(parse_integer(error.substr(6), 1, 999));
    fault.out_of_memory = false;
  }
  fault.repeat = count.ends_with('+');
  if (fault.repeat) count.remove_suffix(1);
  fault.nth = static_cast<std::uint64_t>(parse_integer(count, 1, INT64_MAX));
  return fault;
}

// Returns the device that an entry of CUDA_VISIBLE_DEVICES names: by its number, or by its UUID or the first digits of it; -1: none.
int device_named(std::string_view entry, int devices) {
  if (entry.starts_with("MIG-"))
    throw InvalidArgument(formatted("CUDA_VISIBLE_DEVICES: '{}' is not simulated: GPUs are not divided", entry));
  if (entry.starts_with("GPU-")) {
    int found = -1;
    for (int number = 0; number < devices; ++number) {
      if (!uuid_text(number).starts_with(entry)) continue;
      if (found >= 0) return -1;  // the digits fit several
      found = number;
    }
    return found;
  }
  int number = -1;
  const auto [end, error] = std::from_chars(entry.data(), entry.data() + entry.size(), number);
  return error == std::errc{} && end == entry.data() + entry.size() ? number : -1;
}

// The devices that CUDA_VISIBLE_DEVICES leaves: as in CUDA, those before the first entry that names none, or one for a
// second time.
std::vector<int> visible_devices(std::string_view list, int devices) {
  std::vector<int> visible;
  while (!list.empty()) {
    const auto comma = std::min(list.find(','), list.size());
    const std::string_view entry = list.substr(0, comma);
    list.remove_prefix(std::min(comma + 1, list.size()));
    const int number = device_named(entry, devices);
    if (number < 0 || number >= devices || std::find(visible.begin(), visible.end(), number) != visible.end()) break;
    visible.push_back(number);
  }
  return visible;
}

}  // namespace

LatencyModel Config::latency() const {
  LatencyModel model = latencies ? LatencyModel::published() : LatencyModel::none();
  if (copies_take_the_bus) return model;
  for (const DeviceCall pins : {DeviceCall::host_malloc, DeviceCall::host_free}) {
    model.call_us[static_cast<std::size_t>(pins)] = model.call_us_per_mib[static_cast<std::size_t>(pins)] = 0;
  }
  return model;
}

DeviceCall parse_call(std::string_view name) {
  std::string known;
  for (std::size_t i = 0; i < kDeviceCallCount; ++i) {
    const auto call = static_cast<DeviceCall>(i);
    if (name == to_string(call)) return call;
    known += formatted("{}{}", i == 0 ? "" : ", ", to_string(call));
  }
  refuse(name, formatted("a call is one of {}", known));
}

std::vector<Fault> parse_faults(const std::string& text) {
  std::vector<Fault> faults;
  std::string_view rest = text;
  while (true) {
    const auto comma = rest.find(',');
    faults.push_back(parse_fault(rest.substr(0, comma)));
    if (comma == std::string_view::npos) return faults;
    rest.remove_prefix(comma + 1);
  }
}

Config read_config() {
  const SimulationSettings settings = SimulationSettings::of_environment();
  Config config;
  config.gpu = &find_gpu_model("h100");
  settings.with("gpu", [&](const auto& text) { config.gpu = &find_gpu_model(text); });
  config.memory_bytes = config.gpu->memory_bytes;
  settings.with("memory", [&](const auto& text) {
    config.memory_bytes = parse_bytes_between(text, kPhysicalUnit, kLargestAddressSpace);
  });
  settings.with("devices",
                [&](const auto& text) { config.devices = static_cast<int>(parse_integer(text, 0, kMostDevices)); });
  config.machine_devices = config.devices;
  config.physical_devices.resize(static_cast<std::size_t>(config.devices));
  std::iota(config.physical_devices.begin(), config.physical_devices.end(), 0);
  if (const auto visible = environment("CUDA_VISIBLE_DEVICES"))
    config.physical_devices = visible_devices(*visible, config.devices);
  config.devices = static_cast<int>(config.physical_devices.size());
  settings.with("launch_ns", [&](const auto& text) { config.launch_ns = parse_integer(text, 0, 1'000'000'000'000); });
  settings.with("copy_bytes", [&](const auto& text) { config.copy_bytes = parse_bytes(text); });
  settings.with("copies",
                [&](const auto& text) { config.copies_take_the_bus = is_second_of("fixed", "published", text); });
  settings.with("latency", [&](const auto& text) { config.latencies = !is_second_of("published", "none", text); });
  settings.with("address_space", [&](const auto& text) {
    config.address_space_bytes =
        round_down(parse_bytes_between(text, kSmallestAddressSpace, kLargestAddressSpace), kPhysicalUnit);
  });
  settings.with("shared", [&](const auto& text) { config.shared_path = text; });
  settings.with("log", [&](const auto& text) { config.log_path = expand_path(text); });
  settings.with("report", [&](const auto& text) { config.report_path = expand_path(text); });
  settings.with("contexts", [&](const auto& text) { config.contexts = parse_contexts(text); });
  settings.with("legacy_stream",
                [&](const auto& text) { config.legacy_stream_waits = !is_second_of("waits", "alone", text); });
  settings.with("strict", [&](const auto& text) { config.is_strict = is_second_of("0", "1", text); });
  settings.with("races", [&](const auto& text) { config.finds_races = is_second_of("0", "1", text); });
  settings.with("sizing", [&](const auto& text) { config.refuses_sizing = is_second_of("allowed", "refused", text); });
  settings.with("absent_ranks", [&](const auto& text) { config.are_ranks_absent = is_second_of("0", "1", text); });
  settings.with("context", [&](const auto& text) { config.context = parse_context(text, *config.gpu); });
  settings.with("mapping", [&](const auto& text) { config.mapping_waits = is_second_of("at_once", "waits", text); });
  settings.with("faults", [&](const auto& text) { config.faults = parse_faults(text); });
  return config;
}

}  // namespace cachalot::simulator
