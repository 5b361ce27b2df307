#include "tools/simulation_environment.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <string_view>
#include <utility>

#include "cachalot/errors.h"
#include "policy/simulation_settings.h"
#include "tools/python_program.h"
#include "tools/simulation_files.h"

namespace cachalot::tools {
namespace {

namespace fs = std::filesystem;

constexpr const char* kEveryCopy = "8192GiB";  // larger than any memory

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
  void erase_if(bool (*is_such)(std::string_view name)) {
    std::erase_if(values_, [&](const auto& variable) { return is_such(variable.first); });
  }
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
}

// The user's, and on top of them what the options say.
SimulationSettings settings_of_run(const SimulationOptions& options, const fs::path& reports) {
  SimulationSettings settings = SimulationSettings::of_environment();
  if (options.gpu) settings.set("gpu", *options.gpu);
  if (options.memory) settings.set("memory", *options.memory);
  if (settings.find("context") == nullptr) settings.set("context", "model");
  if (options.context) settings.set("context", *options.context);
  settings.set("devices", std::to_string(options.devices));
  settings.set("report", (reports / "driver-%p.json").string());
  settings.set("observe", reports.string());
  settings.set("compute", options.compute);
  settings.set("unknown", options.unknown);
  if (options.compute == "all") settings.set("copy_bytes", kEveryCopy);
  settings.set("shared", (reports / kSharedMemory).string());
  if (options.rank) settings.set("absent_ranks", "1");
  if (options.strict) settings.set("strict", "1");
  if (options.is_one_of_many) settings.set("traces_only", "1");
  if (options.max_steps) settings.set("max_steps", std::to_string(*options.max_steps));
  if (!options.trace_path.empty()) {
    settings.set("trace", fs::absolute(options.trace_path).string());
    settings.set("log", (reports / "log-%p.txt").string());
  }
  return settings;
}

Environment with_modules(const fs::path& simulator) {
  Environment environment;
  environment.prepend("PYTHONPATH", (simulator / "python").string());
  return environment;
}

Environment with_simulator(const fs::path& simulator) {
  Environment environment = with_modules(simulator);
  environment.prepend("LD_PRELOAD", (simulator / kSimulatorLibrary).string());
  environment.prepend("LD_LIBRARY_PATH", (simulator / "driver").string());
  return environment;
}

}  // namespace

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

std::vector<std::string> environment_of_run(const SimulationOptions& options, const fs::path& simulator,
                                            const fs::path& reports) {
  Environment environment = with_simulator(simulator);
  environment.erase_if(SimulationSettings::is_variable);
  environment.set("CACHALOT_SIM", settings_of_run(options, reports).text());
  if (options.rank) describe_rank(environment, *options.rank, options.devices);
  return environment.entries();
}

std::vector<std::string> environment_of_helper() { return with_modules(find_simulator()).entries(); }

std::vector<std::string> environment_of_fork_server() { return with_simulator(find_simulator()).entries(); }

}  // namespace cachalot::tools
