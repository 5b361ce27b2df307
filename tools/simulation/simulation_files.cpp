#include "tools/simulation/simulation_files.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <iterator>
#include <sstream>
#include <unordered_map>

#include "base/bytes.h"
#include "base/check.h"
#include "tools/base/text_layout.h"

namespace cachalot::tools {

TemporaryFolder::TemporaryFolder() {
  std::string name = (std::filesystem::temp_directory_path() / "cachalot-simulate-XXXXXX").string();
  CACHALOT_REQUIRE(mkdtemp(name.data()) != nullptr, "no folder for the report can be made at {}: {}", name,
                   std::strerror(errno));
  path_ = name;
}

TemporaryFolder::~TemporaryFolder() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

std::size_t number(const nlohmann::json& object, const char* key) { return object.at(key).get<std::size_t>(); }
std::string word(const nlohmann::json& object, const char* key) { return object.at(key).get<std::string>(); }
std::string bytes_of(const nlohmann::json& object, const char* key) { return format_bytes(number(object, key)); }

std::string at_place(const std::string& place) { return place.starts_with("outside") ? place : "at " + place; }

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

bool has_races(const nlohmann::json& torch) {
  if (torch.is_null()) return false;
  const nlohmann::json& races = torch.at("races");
  return !races.is_null() && !races.empty();
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

namespace {

constexpr int kSignals = 128;  // an exit code above is a signal, if there is such a one
constexpr int kMostSignal = 64;

bool is_signal(int exit_code) { return exit_code > kSignals && exit_code <= kSignals + kMostSignal; }

std::string counted(std::size_t count, const char* what) {
  return fmt::format("{} {}{}", with_commas(count), what, count == 1 ? "" : "s");
}

std::string cause_of(const ProgramEnding& ending) {
  if (is_signal(ending.exit_code)) {
    const int signal = ending.exit_code - kSignals;
    return fmt::format("signal {} ({})", signal, strsignal(signal));
  }
  if (!ending.error) return fmt::format("exit code {}", ending.exit_code);
  return fmt::format("an error of type {}{}", *ending.error, ending.error_at.empty() ? "" : " at " + ending.error_at);
}

}  // namespace

void add_process(ProgramEnding& ending, const nlohmann::json& python, bool is_main) {
  ending.optimizer_steps = std::max(ending.optimizer_steps, python.at("optimizer_steps").get<std::size_t>());
  ending.forward_calls = std::max(ending.forward_calls, python.at("forward_calls").get<std::size_t>());
  if (const nlohmann::json& stopped = python.at("stopped"); !stopped.is_null()) {
    ending.ended = stopped == "steps" ? Ended::steps : Ended::unknown_value;
    if (ending.ended == Ended::unknown_value) ending.circles_at = python.at("circles_at").get<std::string>();
  }
  const nlohmann::json& error = python.at("error");
  if (error.is_null() || (ending.error && !is_main)) return;
  ending.error = error.at("type").get<std::string>();
  ending.error_at = error.at("at").is_null() ? "" : error.at("at").get<std::string>();
}

std::string how_it_ended(const ProgramEnding& ending) {
  const std::string progress = progress_of(ending);
  return cause_of(ending) + (progress.empty() ? "" : " after " + progress);
}

std::string why_it_was_ended(const ProgramEnding& ending) {
  if (ending.ended == Ended::no) return "";
  const std::string progress = progress_of(ending);
  const std::string when = progress.empty() ? "" : " after " + progress;
  if (ending.ended != Ended::unknown_value) return fmt::format("the program was ended{} as asked", when);
  return fmt::format("the program was ended{}: at {} it has read an unknown value 10,000 times", when,
                     ending.circles_at);
}

std::string progress_of(const ProgramEnding& ending) {
  if (ending.optimizer_steps > 0) return counted(ending.optimizer_steps, "step");
  return ending.forward_calls > 0 ? counted(ending.forward_calls, "forward call") : "";
}

nlohmann::json json_of(const ProgramEnding& ending) {
  nlohmann::json json = {
      {"good", ending.is_good()}, {"optimizer_steps", ending.optimizer_steps}, {"forward_calls", ending.forward_calls}};
  json["error"] = nullptr;
  if (ending.error) json["error"] = {{"type", *ending.error}, {"at", ending.error_at}};
  json["signal"] = nullptr;
  if (is_signal(ending.exit_code)) json["signal"] = ending.exit_code - kSignals;
  json["asked"] = nullptr;
  if (ending.ended == Ended::steps) json["asked"] = "steps";
  if (ending.ended == Ended::seconds) json["asked"] = "seconds";
  json["circles_at"] = nullptr;
  if (ending.ended == Ended::unknown_value) json["circles_at"] = ending.circles_at;
  return json;
}

}  // namespace cachalot::tools
