// The common parts of the statistics pages' tests: a folder of pages, and a page as it lies there.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <cstring>
#include <filesystem>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "cachalot/simulated_device.h"
#include "cachalot/statistics_page.h"
#include "cachalot/statistics_publisher.h"
#include "tests/tools/temporary_file.h"

namespace cachalot::testing {

// A folder of its own, gone after the test.
struct PageFolder {
  PageFolder() { std::filesystem::create_directory(file.path()); }
  const std::string& path() const { return file.path(); }
  std::vector<std::string> pages() const {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(path())) names.push_back(entry.path().string());
    return names;
  }
  PublishOptions options() const {
    PublishOptions options;
    options.directory = path();
    return options;
  }

  tools::TemporaryFile file;
};

struct PageCopy {
  StatisticsPageHeader header;
  std::vector<StatisticsPageDevice> devices;
};

// Returns a page that is not being written; nullopt if the file is not a page.
inline std::optional<PageCopy> copy_of_page(const std::string& path) {
  for (int i = 0; i < 1000; ++i) {
    const std::string bytes = tools::read_whole(path);
    PageCopy copy{};
    if (bytes.size() < sizeof(copy.header)) return std::nullopt;
    std::memcpy(&copy.header, bytes.data(), sizeof(copy.header));
    if (copy.header.sequence % 2 != 0) continue;
    copy.devices.resize((bytes.size() - sizeof(copy.header)) / sizeof(StatisticsPageDevice));
    if (!copy.devices.empty()) {
      std::memcpy(copy.devices.data(), bytes.data() + sizeof(copy.header),
                  copy.devices.size() * sizeof(StatisticsPageDevice));
    }
    StatisticsPageHeader again{};
    const std::string later = tools::read_whole(path);
    if (later.size() != bytes.size()) continue;
    std::memcpy(&again, later.data(), sizeof(again));
    if (again.sequence == copy.header.sequence) return copy;
  }
  return std::nullopt;
}

// Waits for some seconds until it is so.
template <typename Condition>
bool becomes(Condition condition) {
  const auto give_up = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (!condition()) {
    if (std::chrono::steady_clock::now() > give_up) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return true;
}

}  // namespace cachalot::testing
