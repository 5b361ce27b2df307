#include "tools/exports/export_parts.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/check.h"
#include "tools/json_text.h"

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

}  // namespace cachalot::tools
