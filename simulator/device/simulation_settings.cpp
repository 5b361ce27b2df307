#include "simulator/device/simulation_settings.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cctype>
#include <cstdlib>
#include <iterator>
#include <vector>

#include "base/environment.h"
#include "base/format.h"
#include "base/suggestions.h"
#include "policy/option_grammar.h"

CACHALOT_BEGIN

namespace {

constexpr std::string_view kVariable = "CACHALOT_SIM";
constexpr std::string_view kFormerPrefix = "CACHALOT_SIM_";
// simulator/README.md says what they mean. Values may be paths.
constexpr std::string_view kSettingKeys[] = {
    "gpu",          "memory",        "devices", "context",     "contexts",  "latency",       "launch_ns",
    "mapping",      "legacy_stream", "copies",  "copy_bytes",  "compute",   "compute_bytes", "compute_work",
    "unknown",      "faults",        "strict",  "log",         "report",    "address_space", "shared",
    "absent_ranks", "observe",       "trace",   "traces_only", "max_steps", "sizing",        "races",
};
constexpr Dialect kDialect{"settings", 4096, "'\""};

bool is_key(std::string_view word) { return std::ranges::find(kSettingKeys, word) != std::end(kSettingKeys); }

std::string did_you_mean_key(std::string_view word) {
  const std::string suggestion = did_you_mean(word, kSettingKeys);
  return suggestion.empty() ? formatted("the keys are {}", join(kSettingKeys, ", ")) : suggestion;
}

// The key whose variable that was: "gpu" of CACHALOT_SIM_GPU.
std::string former_key(std::string_view variable) {
  std::string key(variable.substr(kFormerPrefix.size()));
  std::ranges::transform(key, key.begin(), [](unsigned char c) { return std::tolower(c); });
  return key;
}

std::string as_value(const std::string& value) {
  const auto is_plain = [](unsigned char c) {
    return std::isspace(c) == 0 && std::string_view(",:[]'\"").find(static_cast<char>(c)) == std::string_view::npos;
  };
  if (!value.empty() && std::ranges::all_of(value, is_plain)) return value;
  std::string quoted = "\"";
  for (const char c : value) quoted += c == '"' ? std::string("\"\"") : std::string(1, c);
  return quoted + '"';
}

}  // namespace

SimulationSettings SimulationSettings::of_environment() {
  SimulationSettings settings = parse(environment(std::string(kVariable).c_str()).value_or(""));
  settings.add_former_variables();
  return settings;
}

SimulationSettings SimulationSettings::parse(std::string_view text) {
  SimulationSettings settings;
  try {
    for (const OptionSetting& setting : read_settings(text, kDialect)) {
      if (!is_key(setting.key)) {
        throw InvalidArgument(formatted("Unrecognized key '{}' (value '{}'); {}", setting.key, shown(setting.value),
                                        did_you_mean_key(setting.key)));
      }
      if (setting.is_list) refuse(setting, "it takes one value, not a list; a value with ',' or ':' stands in quotes");
      const auto [first, is_new] = settings.values_.emplace(setting.key, setting.value);
      if (!is_new) refuse(setting, formatted("{} is given twice, first as '{}'", setting.key, shown(first->second)));
    }
  } catch (const InvalidArgument& error) {
    throw InvalidArgument(formatted("{}: {}", kVariable, error.what()));
  }
  return settings;
}

bool SimulationSettings::is_variable(std::string_view name) {
  return name == kVariable || (name.starts_with(kFormerPrefix) && is_key(former_key(name)));
}

void SimulationSettings::add_former_variables() {
  std::vector<std::string> former;
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    const std::string_view text = *entry;
    const std::string_view variable = text.substr(0, text.find('='));
    if (!variable.starts_with(kFormerPrefix)) continue;
    const std::string key = former_key(variable);
    if (!is_key(key))
      throw InvalidArgument(
          formatted("{}: there is no such variable, but keys of {}; {}", variable, kVariable, did_you_mean_key(key)));
    if (variable.size() + 1 >= text.size()) continue;  // an empty one is as none
    former.emplace_back(variable);
    values_.emplace(key, text.substr(variable.size() + 1));
  }
  static std::atomic<bool> was_told{false};
  if (former.empty() || was_told.exchange(true)) return;
  print_error("cachalot: the next version does not read {}; set {}='{}'\n", join(former, ", "), kVariable,
              this->text());
}

const std::string* SimulationSettings::find(std::string_view key) const {
  const auto found = values_.find(key);
  return found == values_.end() ? nullptr : &found->second;
}

std::string SimulationSettings::text() const {
  std::string text;
  for (const auto& [key, value] : values_) text += formatted("{}{}:{}", text.empty() ? "" : ",", key, as_value(value));
  return text;
}

std::string SimulationSettings::named(std::string_view key, const char* what) {
  return formatted("{}: option {}: {}", kVariable, key, what);
}

CACHALOT_END
