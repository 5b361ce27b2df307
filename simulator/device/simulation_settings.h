// The environment variable CACHALOT_SIM: the simulated hardware and its behaviour, as "gpu:l4,memory:24GiB".
//
// The grammar is that of the options without lists. A value with a separator, a space or a quote stands in quotes ('…' or
// "…"); a quote of that kind in it is doubled.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <utility>

#include "cachalot/errors.h"

CACHALOT_BEGIN

// SimulationSettings are the values that the variable gives to its keys.
class SimulationSettings {
 public:
  // Reads the variable. Each key was a variable of its own, CACHALOT_SIM_GPU: those are read where CACHALOT_SIM does not have
  // the key, and a line on standard error says so once per process. Throws InvalidArgument that names variable, key, value
  // and rule.
  static SimulationSettings of_environment();
  // Throws InvalidArgument.
  static SimulationSettings parse(std::string_view text);
  // Returns true for the name of a variable that of_environment reads.
  static bool is_variable(std::string_view name);

  // Returns null for a key without a value.
  const std::string* find(std::string_view key) const;
  void set(const std::string& key, std::string value) { values_[key] = std::move(value); }
  // Calls use(value) if the key has one. An InvalidArgument that it throws names the key.
  template <typename Use>
  void with(std::string_view key, Use&& use) const;
  // Returns the text of which parse makes these settings.
  std::string text() const;

 private:
  static std::string named(std::string_view key, const char* what);
  void add_former_variables();

  std::map<std::string, std::string, std::less<>> values_;
};

template <typename Use>
void SimulationSettings::with(std::string_view key, Use&& use) const {
  const std::string* const value = find(key);
  if (value == nullptr) return;
  try {
    use(*value);
  } catch (const InvalidArgument& error) {
    throw InvalidArgument(named(key, error.what()));
  }
}

CACHALOT_END
