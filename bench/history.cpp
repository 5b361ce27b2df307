// Reads a history and prints how long that took and what it needed: bench/history.py runs it on files that it makes.
#include <fmt/format.h>

#include <chrono>
#include <cstdio>
#include <exception>
#include <fstream>
#include <string>

#include "tools/analysis/timeline.h"
#include "tools/history/history.h"

namespace cachalot::bench {
namespace {

// The most memory that this process has held, in MB.
double peak_megabytes() {
  std::ifstream status("/proc/self/status");
  for (std::string key; status >> key;) {
    double kilobytes = 0;
    if (key == "VmHWM:" && status >> kilobytes) return kilobytes * 1024 / 1e6;
  }
  return 0;
}

class Clock {
 public:
  double seconds() const { return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin_).count(); }

 private:
  std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
};

void print(const char* what, const Clock& clock, std::size_t count) {
  fmt::print("{:<12} {:>8.3f} s  {:>7.1f} MB at most  {} of them\n", what, clock.seconds(), peak_megabytes(), count);
}

void measure(const std::string& path) {
  const Clock reading;
  const tools::History history = tools::read_history(path);
  std::size_t events = 0;
  for (const tools::DeviceHistory& device : history.devices) events += device.events.size();
  print("events", reading, events);
  const Clock pairing;
  std::size_t allocations = 0;
  for (const tools::DeviceHistory& device : history.devices)
    allocations += tools::Timeline(history, device).allocations().size();
  print("allocations", pairing, allocations);
}

}  // namespace
}  // namespace cachalot::bench

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fputs("usage: history <memory snapshot, log or trace>\n", stderr);
    return 2;
  }
  try {
    cachalot::bench::measure(argv[1]);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "history: %s\n", error.what());
    return 1;
  }
}
