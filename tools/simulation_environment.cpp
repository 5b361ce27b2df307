#include "tools/simulation_environment.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <string_view>
#include <utility>

#include "cachalot/errors.h"
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
  return environment.entries();
}

std::vector<std::string> environment_of_helper() { return with_modules(find_simulator()).entries(); }

std::vector<std::string> environment_of_fork_server() { return with_simulator(find_simulator()).entries(); }

}  // namespace cachalot::tools
