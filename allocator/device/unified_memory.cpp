#include "device/unified_memory.h"

#include <algorithm>
#include <fstream>
#include <sstream>

#include "base/bytes.h"

CACHALOT_BEGIN

// A line is "MemAvailable:   61234567 kB".
std::optional<std::size_t> available_host_bytes(const std::string& file) {
  std::ifstream lines(file);
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    std::string name;
    std::size_t kib = 0;
    if (words >> name && name == "MemAvailable:" && words >> kib) return kib * kKiB;
  }
  return std::nullopt;
}

MemoryInfo with_available_bytes(const MemoryInfo& reported, std::optional<std::size_t> available) {
  if (!available) return reported;
  return {.free_bytes = std::min(*available, reported.total_bytes), .total_bytes = reported.total_bytes};
}

CACHALOT_END
