#include "c_api_environment.h"

#include <charconv>
#include <cstdlib>
#include <string_view>

#include "base/bytes.h"
#include "base/check.h"
#include "base/format.h"
#include "cachalot/simulated_device.h"
#include "device/cuda_device.h"
#include "live/process_publisher.h"
#include "policy/option_warnings.h"
#include "policy/simulation_settings.h"
#include "policy/torch_policy.h"

CACHALOT_BEGIN

namespace {

// parse(text of the variable), or parse(otherwise) where it is not set.
template <typename Parse>
auto from_environment(const char* variable, const char* otherwise, Parse parse) {
  const char* const text = std::getenv(variable);
  try {
    return parse(std::string_view(text == nullptr ? otherwise : text));
  } catch (const InvalidArgument& error) {
    throw BadEnvironment(formatted("environment variable {}: {}", variable, error.what()));
  }
}

std::size_t parse_device_memory(std::string_view text) {
  const std::size_t bytes = parse_bytes(text);
  constexpr std::size_t kMost = std::size_t{1} << 50;
  CACHALOT_REQUIRE(bytes >= kSmallBuffer, "'{}' is less than one segment, 2 MiB", text);
  CACHALOT_REQUIRE(bytes <= kMost, "'{}' is more than 1 PiB", text);
  return bytes;
}

int parse_device_count(std::string_view text) {
  constexpr int kMaxDevices = 64;
  int count = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), count);
  const bool is_number = error == std::errc{} && end == text.data() + text.size();
  CACHALOT_REQUIRE(is_number && count >= 1 && count <= kMaxDevices, "'{:.60}' is not a number of devices from 1 to {}",
                   text, kMaxDevices);
  return count;
}

std::vector<std::shared_ptr<Device>> simulated_devices() {
  SimulatedDevice::Config config;
  config.memory_bytes = std::size_t{80} << 30;
  int count = 1;
  try {
    const SimulationSettings settings = SimulationSettings::of_environment();
    settings.with("memory", [&](std::string_view text) { config.memory_bytes = parse_device_memory(text); });
    settings.with("devices", [&](std::string_view text) { count = parse_device_count(text); });
  } catch (const InvalidArgument& error) {
    throw BadEnvironment(formatted("environment variable {}", error.what()));
  }
  std::vector<std::shared_ptr<Device>> devices;
  for (config.index = 0; config.index < count; ++config.index) {
    devices.push_back(std::make_shared<SimulatedDevice>(config));
  }
  return devices;
}

bool parse_simulate(std::string_view value) {
  CACHALOT_REQUIRE(value.empty() || value == "0" || value == "1", "'{}' is not 1, for simulated devices, nor 0", value);
  return value == "1";
}

}  // namespace

// The GPUs. A driver without any, or too old, or an error at its start is an error: a program that expects a GPU must
// not be handed addresses that no kernel can use. Simulated devices are for who asks for them, and for machines without
// a driver.
std::vector<std::shared_ptr<Device>> devices_of_environment() {
  if (from_environment("CACHALOT_SIMULATE", "", parse_simulate)) return simulated_devices();
  std::vector<std::shared_ptr<Device>> devices = cuda_devices();
  if (!devices.empty()) return devices;
  if (cuda_driver_version() != 0) {
    throw CudaError("cuInit", 100,
                    "CUDA_ERROR_NO_DEVICE, the driver shows no GPU (CUDA_VISIBLE_DEVICES may hide it); "
                    "CACHALOT_SIMULATE=1 selects simulated devices");
  }
  devices = simulated_devices();
  print_error(
      "cachalot: {}: memory is that of {} simulated GPU{}, and no kernel can use it "
      "(CACHALOT_SIMULATE=1 selects that without this message)\n",
      CACHALOT_HAS_CUDA ? "there is no CUDA driver" : "this build is without CUDA", devices.size(),
      devices.size() == 1 ? "" : "s");
  return devices;
}

Options options_of_environment() {
  Options base;
  base.debug = from_environment("CACHALOT_DEBUG", "", parse_debug);
  Options options =
      from_environment("CACHALOT_CONF", "", [&](std::string_view text) { return parse_options(text, base); });
  warn_of_options_without_effect(options);
  return options;
}

bool publishes_by_environment() {
  try {
    return is_publishing_asked_for();
  } catch (const InvalidArgument& error) {
    throw BadEnvironment(formatted("environment variable CACHALOT_PUBLISH: {}", error.what()));
  }
}

CACHALOT_END
