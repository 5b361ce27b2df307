#include "tools/simulation_files.h"

#include <fmt/format.h>
#include <zlib.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <sstream>
#include <unordered_map>

#include "base/check.h"

namespace cachalot::tools {

namespace {

constexpr std::size_t kMostPerWrite = std::size_t{1} << 30;  // gzwrite counts with an int

}  // namespace

std::size_t number(const nlohmann::json& object, const char* key) { return object.at(key).get<std::size_t>(); }

bool uses_a_device(const nlohmann::json& driver) {
  if (driver.is_null()) return false;
  for (const nlohmann::json& device : driver.at("devices")) {
    if (device.at("allocations") > 0 || device.contains("context_lack")) return true;
  }
  return false;
}

bool breaks_rules(const nlohmann::json& driver) {
  if (driver.is_null() || !driver.contains("breaches")) return false;
  return !driver.at("breaches").empty() || !driver.at("leaks").empty();
}

// A line: <clock ns> <device> <call> <address> <bytes> ok|failed.
std::string trace_of_log(std::istream& log) {
  std::string trace;
  std::unordered_map<std::string, std::size_t> ids;
  std::size_t made = 0;
  std::string line;
  while (std::getline(log, line)) {
    std::istringstream words(line);
    std::string clock, device, call, address, bytes, outcome;
    words >> clock >> device >> call >> address >> bytes >> outcome;
    if (outcome != "ok") continue;
    if (call == "malloc") {
      ids[address] = made;
      fmt::format_to(std::back_inserter(trace), "a,{},{},0\n", made++, bytes);
    } else if (const auto found = ids.find(address); call == "free" && found != ids.end()) {
      fmt::format_to(std::back_inserter(trace), "f,{}\n", found->second);
      ids.erase(found);
    }
  }
  return trace;
}

void write_file(const std::string& path, const std::string& text) {
  if (path.ends_with(".gz")) {
    gzFile file = gzopen(path.c_str(), "wb");
    CACHALOT_REQUIRE(file != nullptr, "'{}' cannot be written", path);
    bool written = true;
    for (std::size_t begin = 0; begin < text.size() && written; begin += kMostPerWrite) {
      const auto bytes = static_cast<unsigned>(std::min(text.size() - begin, kMostPerWrite));
      written = gzwrite(file, text.data() + begin, bytes) == static_cast<int>(bytes);
    }
    const bool closed = gzclose(file) == Z_OK;
    CACHALOT_REQUIRE(closed && written, "'{}' cannot be written", path);
    return;
  }
  std::ofstream file(path);
  file << text;
  file.close();
  CACHALOT_REQUIRE(file.good(), "'{}' cannot be written", path);
}

}  // namespace cachalot::tools
