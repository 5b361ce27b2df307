#include "simulator/device/simulated_devices.h"

#include <optional>
#include <string_view>

#include "base/bytes.h"
#include "base/check.h"
#include "cachalot/simulated_device.h"
#include "policy/option_grammar.h"
#include "policy/torch_policy.h"
#include "simulator/device/simulation_settings.h"

CACHALOT_BEGIN

namespace {

std::size_t parse_device_memory(std::string_view text) {
  const std::size_t bytes = parse_bytes(text);
  constexpr std::size_t kMost = std::size_t{1} << 50;
  CACHALOT_REQUIRE(bytes >= kSmallBuffer, "'{}' is less than one segment, 2 MiB", text);
  CACHALOT_REQUIRE(bytes <= kMost, "'{}' is more than 1 PiB", text);
  return bytes;
}

int parse_device_count(std::string_view text) {
  constexpr int kMaxDevices = 64;
  const std::optional<int> count = number_in<int>(text);
  CACHALOT_REQUIRE(count && *count >= 1 && *count <= kMaxDevices, "'{:.60}' is not a number of devices from 1 to {}",
                   text, kMaxDevices);
  return *count;
}

}  // namespace

std::vector<std::shared_ptr<Device>> simulated_devices() {
  SimulatedDevice::Config config;
  config.memory_bytes = std::size_t{80} << 30;
  int count = 1;
  const SimulationSettings settings = SimulationSettings::of_environment();
  settings.with("memory", [&](std::string_view text) { config.memory_bytes = parse_device_memory(text); });
  settings.with("devices", [&](std::string_view text) { count = parse_device_count(text); });
  std::vector<std::shared_ptr<Device>> devices;
  for (config.index = 0; config.index < count; ++config.index)
    devices.push_back(std::make_shared<SimulatedDevice>(config));
  return devices;
}

CACHALOT_END
