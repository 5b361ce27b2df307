// An option as help, completion and the man page show it, taken from its declaration.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace cachalot::tools {

struct OptionText {
  std::vector<std::string> names;  // "--gpu", or "-h" and "--help"; empty for a positional
  std::string value;               // "GPU": what its value is called; of a positional its name; empty for a flag
  std::string description;
  std::string default_value;         // empty: none that is worth telling
  std::vector<std::string> choices;  // the values it takes; empty: any
  bool is_positional = false;
  bool is_repeated = false;  // a positional that may come several times
  bool is_file = false;      // its value is the path of a file
  bool is_required = false;
};

// Returns the options in the order of their declaration.
std::vector<OptionText> options_of(const CLI::App& app);

// Returns "--gpu GPU", "-h, --help" or "TRACE...".
std::string usage_of(const OptionText& option);

// Returns a check that a value is one of the choices of an option whose value is called so; its message asks what was meant.
CLI::Validator one_of_its_choices(const std::string& value);

// Returns the index of the first word that is no option of `app` and no value of one: where a program begins. A word "--"
// before it belongs to neither, and is left in front.
std::size_t end_of_options(const CLI::App& app, const std::vector<std::string>& words);

}  // namespace cachalot::tools
