#include "tools/pages/page_report.h"

#include <fmt/format.h>

#include <filesystem>

namespace cachalot::tools {

void add_runs(PageReport& report, const History& history) {
  const std::string file = std::filesystem::path(history.path).filename().string();
  for (const DeviceHistory& device : history.devices) {
    const std::string name = history.devices.size() == 1 ? file : fmt::format("{}, device {}", file, device.device);
    report.runs.push_back({.history = &history, .device = &device, .name = name});
  }
  for (const DeviceHistory& host : history.host) {
    report.runs.push_back(
        {.history = &history, .device = &host, .name = fmt::format("{}, pinned host memory", file), .is_host = true});
  }
}

}  // namespace cachalot::tools
