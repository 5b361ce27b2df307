#include "tools/simulation.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <sstream>
#include <string_view>
#include <utility>

#include "base/check.h"
#include "cachalot/errors.h"
#include "simulator/shared_memory_file.h"
#include "tools/child_program.h"
#include "tools/python_program.h"
#include "tools/simulation_cards.h"
#include "tools/simulation_files.h"

namespace cachalot::tools {
namespace {

namespace fs = std::filesystem;

constexpr const char* kEveryCopy = "8192GiB";  // larger than any memory

// The simulator's files: what CACHALOT_SIMULATOR names, else where they lie beside this command, built or installed.
fs::path find_simulator() {
  const char* const named = std::getenv("CACHALOT_SIMULATOR");
  const fs::path here = fs::read_symlink("/proc/self/exe").parent_path();
  std::vector<fs::path> places;
  if (named != nullptr) {
    places = {named};
  } else {
    places = {here / "../simulator", here / ".." / CACHALOT_SIMULATOR_INSTALL_DIR};
  }
  for (const fs::path& place : places) {
    if (fs::exists(place / kSimulatorLibrary)) return fs::canonical(place);
  }
  throw InvalidArgument(fmt::format(
      "{} is not in {}: this cachalot was built without the simulated CUDA runtime, which needs CUDA's headers "
      "(or set CACHALOT_SIMULATOR to its folder)",
      kSimulatorLibrary, places.front().lexically_normal().string()));
}

constexpr const char* kSharedMemory = "devices";  // the file of CACHALOT_SIM_SHARED, in the folder below

// A folder of our own for what the processes report; gone with this.
class ReportFolder {
 public:
  ReportFolder() {
    std::string name = (fs::temp_directory_path() / "cachalot-simulate-XXXXXX").string();
    CACHALOT_REQUIRE(mkdtemp(name.data()) != nullptr, "no folder for the report can be made at {}: {}", name,
                     std::strerror(errno));
    path_ = name;
  }
  ~ReportFolder() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  ReportFolder(const ReportFolder&) = delete;
  ReportFolder& operator=(const ReportFolder&) = delete;

  const fs::path& path() const { return path_; }

 private:
  fs::path path_;
};

class Environment {
 public:
  Environment() {
    for (char** entry = environ; *entry != nullptr; ++entry) {
      const std::string_view text = *entry;
      const std::size_t equals = text.find('=');
      if (equals != std::string_view::npos) {
        values_[std::string(text.substr(0, equals))] = std::string(text.substr(equals + 1));
      }
    }
  }
  void set(const std::string& name, std::string value) { values_[name] = std::move(value); }
  void set_default(const std::string& name, const std::string& value) { values_.try_emplace(name, value); }
  // In front of what is there, behind a colon.
  void prepend(const std::string& name, const std::string& value) {
    std::string& list = values_[name];
    list.insert(0, list.empty() ? value : value + ":");
  }
  std::vector<std::string> entries() const {
    std::vector<std::string> entries;
    entries.reserve(values_.size());
    for (const auto& [name, value] : values_) entries.push_back(fmt::format("{}={}", name, value));
    return entries;
  }

 private:
  std::map<std::string, std::string> values_;
};

// As torchrun sets them, with all devices on one machine of the job.
void describe_rank(Environment& environment, const RankAlone& alone, int devices) {
  environment.set("RANK", std::to_string(alone.rank));
  environment.set("WORLD_SIZE", std::to_string(alone.world_size));
  environment.set("LOCAL_RANK", std::to_string(alone.local_rank));
  environment.set("LOCAL_WORLD_SIZE", std::to_string(std::min(devices, alone.world_size)));
  environment.set("GROUP_RANK", std::to_string(alone.rank / devices));
  environment.set("MASTER_ADDR", "127.0.0.1");
  environment.set("MASTER_PORT", "29500");
  environment.set("CACHALOT_SIM_ABSENT_RANKS", "1");
}

Environment simulated_environment(const SimulationOptions& options, const fs::path& simulator,
                                  const fs::path& reports) {
  Environment environment;
  environment.prepend("LD_PRELOAD", (simulator / kSimulatorLibrary).string());
  environment.prepend("LD_LIBRARY_PATH", (simulator / "driver").string());
  environment.prepend("PYTHONPATH", (simulator / "python").string());
  if (options.gpu) environment.set("CACHALOT_SIM_GPU", *options.gpu);
  if (options.memory) environment.set("CACHALOT_SIM_MEMORY", *options.memory);
  environment.set_default("CACHALOT_SIM_CONTEXT", "model");
  if (options.context) environment.set("CACHALOT_SIM_CONTEXT", *options.context);
  environment.set("CACHALOT_SIM_DEVICES", std::to_string(options.devices));
  environment.set("CACHALOT_SIM_REPORT", (reports / "driver-%p.json").string());
  environment.set("CACHALOT_SIM_OBSERVE", reports.string());
  environment.set("CACHALOT_SIM_COMPUTE", options.compute);
  environment.set("CACHALOT_SIM_UNKNOWN", options.unknown);
  if (options.compute == "all") environment.set("CACHALOT_SIM_COPY_BYTES", kEveryCopy);
  environment.set("CACHALOT_SIM_SHARED", (reports / kSharedMemory).string());
  if (options.rank) describe_rank(environment, *options.rank, options.devices);
  if (options.strict) environment.set("CACHALOT_SIM_STRICT", "1");
  if (options.is_one_of_many) environment.set("CACHALOT_SIM_TRACES_ONLY", "1");
  if (options.max_steps) environment.set("CACHALOT_SIM_MAX_STEPS", std::to_string(*options.max_steps));
  if (!options.trace_path.empty()) {
    environment.set("CACHALOT_SIM_TRACE", fs::absolute(options.trace_path).string());
    environment.set("CACHALOT_SIM_LOG", (reports / "log-%p.txt").string());
  }
  return environment;
}

nlohmann::json read_json(const fs::path& path) {
  std::ifstream file(path);
  return nlohmann::json::parse(file, nullptr, false);
}

// "driver-123.json" for kind "driver": 123.
std::optional<int> process_of(const fs::path& path, std::string_view kind) {
  const std::string name = path.stem().string();
  if (!name.starts_with(std::string(kind) + "-")) return std::nullopt;
  return std::atoi(name.c_str() + kind.size() + 1);
}

constexpr int kKilled = 128 + SIGKILL;

// How the program ended, by its exit code and by what its processes wrote.
ProgramEnding read_ending(const fs::path& folder, const ChildEnd& end) {
  ProgramEnding ending;
  ending.exit_code = end.exit_code;
  for (const auto& entry : fs::directory_iterator(folder)) {
    const std::optional<int> process = process_of(entry.path(), "python");
    const nlohmann::json python = process ? read_json(entry.path()) : nullptr;
    if (python.is_object()) add_process(ending, python, *process == end.process);
  }
  if (end.is_late && end.exit_code != kKilled) {  // one that was killed has written no report: nothing is known
    ending.ended = Ended::seconds;
    ending.exit_code = 0;
  }
  return ending;
}

std::vector<ProcessReport> read_reports(const fs::path& folder) {
  std::map<int, ProcessReport> reports;
  for (const auto& entry : fs::directory_iterator(folder)) {
    const auto add = [&](std::string_view kind, nlohmann::json ProcessReport::*part) {
      const std::optional<int> process = process_of(entry.path(), kind);
      if (!process) return;
      const nlohmann::json report = read_json(entry.path());
      if (report.is_discarded()) return;  // the process was killed before it could write
      reports[*process].process = *process;
      reports[*process].*part = report;
    };
    add("driver", &ProcessReport::driver);
    add("torch", &ProcessReport::torch);
  }
  std::vector<ProcessReport> used;
  for (auto& [process, report] : reports) {
    if (!report.torch.is_null() || uses_a_device(report.driver) || breaks_rules(report.driver))
      used.push_back(std::move(report));
  }
  return used;
}

// Adds to each device what all processes took of it together at the peak.
void add_common_peaks(const fs::path& folder, std::vector<ProcessReport>& reports) {
  const auto shared = std::make_unique<simulator::SharedMemoryFile>();
  std::ifstream file(folder / kSharedMemory, std::ios::binary);
  file.read(reinterpret_cast<char*>(shared.get()), sizeof(*shared));
  for (ProcessReport& report : reports) {
    if (report.driver.is_null()) continue;
    for (nlohmann::json& device : report.driver.at("devices"))
      device["common_peak_bytes"] = shared->peak_bytes[device.at("physical_device").get<std::size_t>()];
  }
}

// Without PyTorch, what the program asks of the driver is the trace. Of the process that asked most.
void write_driver_trace(const fs::path& folder, const std::string& path) {
  std::string largest;
  for (const auto& entry : fs::directory_iterator(folder)) {
    if (!process_of(entry.path(), "log")) continue;
    std::ifstream file(entry.path());
    std::string trace = trace_of_log(file);
    if (trace.size() > largest.size()) largest = std::move(trace);
  }
  write_file(path, largest);
}

void add_traces(Simulation& simulation, const SimulationOptions& options, const fs::path& folder) {
  for (ProcessReport& report : simulation.processes) {
    report.traces = recorded_traces(report, folder);
    if (!options.is_one_of_many) report.cards = card_tables(std::exchange(report.traces, {}));
  }
}

std::string last_lines(const fs::path& path) {
  constexpr std::size_t kMostBytes = 2000;
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  std::string all = text.str();
  while (all.ends_with('\n')) all.pop_back();
  if (all.size() > kMostBytes) {
    all.erase(0, all.size() - kMostBytes);
    if (const std::size_t line = all.find('\n'); line != std::string::npos) all.erase(0, line + 1);
  }
  return all;
}

}  // namespace

const nlohmann::json* torch_of(const ProcessReport& report, const nlohmann::json& device) {
  if (report.torch.is_null()) return nullptr;
  for (const nlohmann::json& torch : report.torch.at("devices")) {
    if (torch.at("device") == device.at("device")) return &torch;
  }
  return nullptr;
}

bool lacked_memory(const nlohmann::json& device, const nlohmann::json* torch, bool failed) {
  if (failed && device.contains("context_lack")) return true;
  return torch != nullptr ? torch->at("ooms") > 0 : !device.at("first_failure").is_null();
}

bool lacked_memory(const Simulation& simulation) {
  for (const ProcessReport& report : simulation.processes) {
    if (report.driver.is_null()) continue;
    for (const nlohmann::json& device : report.driver.at("devices")) {
      if (lacked_memory(device, torch_of(report, device), !simulation.ending.is_good())) return true;
    }
  }
  return false;
}

bool breaks_rules(const Simulation& simulation) {
  return std::ranges::any_of(simulation.processes, [](const auto& one) { return breaks_rules(one.driver); });
}

Simulation simulate(const SimulationOptions& options) {
  CACHALOT_REQUIRE(!options.program.empty(), "no program was given");
  const fs::path simulator = find_simulator();
  if (!options.trace_path.empty()) write_file(options.trace_path, "");  // now, and not after hours of work
  const ReportFolder reports;
  Simulation simulation;
  const fs::path output = reports.path() / "output.txt";
  const ChildEnd end = run_to_end({.words = options.program,
                                   .environment = simulated_environment(options, simulator, reports.path()).entries(),
                                   .output_path = options.is_one_of_many ? output.string() : "",
                                   .most_seconds = options.max_seconds,
                                   .has_our_signals = !options.is_one_of_many});
  simulation.ending = read_ending(reports.path(), end);
  simulation.processes = read_reports(reports.path());
  add_common_peaks(reports.path(), simulation.processes);
  if (options.is_one_of_many) simulation.output = last_lines(output);
  if (simulation.ending.is_good()) add_traces(simulation, options, reports.path());
  const bool by_torch = std::ranges::any_of(simulation.processes, [](const auto& one) { return !one.torch.is_null(); });
  if (!options.trace_path.empty() && !by_torch) write_driver_trace(reports.path(), options.trace_path);
  return simulation;
}

}  // namespace cachalot::tools
