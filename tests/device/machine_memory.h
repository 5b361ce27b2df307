// The memory use of a machine, as a test says it is.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include "base/bytes.h"

namespace cachalot {

// MachineMemory has files as Linux writes them into /proc; CACHALOT_PROC names their folder as long as it lives.
class MachineMemory {
 public:
  MachineMemory() : folder_(::testing::TempDir() + "proc." + std::to_string(getpid())) {
    std::filesystem::create_directories(folder_ / "pressure");
    setenv("CACHALOT_PROC", folder_.c_str(), 1);
  }
  ~MachineMemory() {
    unsetenv("CACHALOT_PROC");
    std::filesystem::remove_all(folder_);
  }
  MachineMemory(const MachineMemory&) = delete;
  MachineMemory& operator=(const MachineMemory&) = delete;

  void write(const std::string& text) const { put(folder_ / "meminfo", text); }
  void set_available(std::size_t bytes) const {
    write("MemTotal:       99999999 kB\nMemFree:            1024 kB\nMemAvailable:   " + std::to_string(bytes / kKiB) +
          " kB\nBuffers:               0 kB\n");
  }
  // `percent` is text with two digits behind the point.
  void set_stalled(const std::string& percent) const {
    put(folder_ / "pressure" / "memory", "some avg10=" + percent + " avg60=0.75 avg300=0.40 total=157656722\n" +
                                             "full avg10=0.00 avg60=0.13 avg300=0.13 total=16401432\n");
  }
  void remove() const { std::filesystem::remove(folder_ / "meminfo"); }

 private:
  // A reader finds the old text or the new one.
  static void put(const std::filesystem::path& path, const std::string& text) {
    const std::filesystem::path next = path.string() + ".next";
    std::ofstream(next) << text;
    std::filesystem::rename(next, path);
  }

  const std::filesystem::path folder_;
};

}  // namespace cachalot
