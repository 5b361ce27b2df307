#include "device/unified_memory.h"

#include <algorithm>
#include <fstream>
#include <sstream>
#include <string_view>

#include "base/bytes.h"
#include "base/environment.h"

CACHALOT_BEGIN

std::optional<HostMemory> HostMemory::of_machine(bool is_gpu_simulated) {
  const std::string_view named = environment("CACHALOT_PROC").value_or("");
  if (!named.empty()) return HostMemory(std::string(named));
  if (is_gpu_simulated) return std::nullopt;
  return HostMemory("/proc");
}

// A line is "MemAvailable:   61234567 kB".
std::optional<std::size_t> HostMemory::available_bytes() const {
  std::ifstream lines(folder_ + "/meminfo");
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    std::string name;
    std::size_t kib = 0;
    if (words >> name && name == "MemAvailable:" && words >> kib) return kib * kKiB;
  }
  return std::nullopt;
}

// A line is "some avg10=2.04 avg60=0.75 avg300=0.40 total=157656722".
std::optional<double> HostMemory::stalled_percent() const {
  constexpr std::string_view kFigure = "avg10=";
  std::ifstream lines(folder_ + "/pressure/memory");
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    std::string who;
    std::string figure;
    if (!(words >> who >> figure) || who != "some" || !figure.starts_with(kFigure)) continue;
    std::istringstream number(figure.substr(kFigure.size()));
    double percent = 0;
    if (number >> percent) return percent;
  }
  return std::nullopt;
}

MemoryInfo with_available_bytes(const MemoryInfo& reported, std::optional<std::size_t> available) {
  if (!available) return reported;
  const std::size_t kept = kept_for_system(reported.total_bytes);
  const std::size_t free = *available - std::min(*available, kept);
  return {.free_bytes = std::min(free, reported.total_bytes), .total_bytes = reported.total_bytes};
}

CACHALOT_END
