// Options and commands as help, completion and the man page show them, taken from their declarations.
#pragma once

#include <CLI/CLI.hpp>

#include <string>
#include <string_view>
#include <vector>

#include "tools/commands/command.h"

namespace cachalot::tools {

// An option as help, completion and the man page show it, taken from its declaration.
struct OptionText {
  std::vector<std::string> names;  // "--gpu", or "-h" and "--help"; empty for a positional
  std::string value;               // "GPU": what its value is called; of a positional its name; empty for a flag
  std::string group;               // "Options of the output"
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

// Returns whether it is a positional whose values are paths of files.
bool takes_files(const CLI::Option& option);

// Returns "--gpu GPU", "-h, --help" or "TRACE...".
std::string usage_of(const OptionText& option);

// Returns a check that a value is one of the choices of an option whose value is called so; its message asks what was meant.
CLI::Validator one_of_its_choices(const std::string& value);

// Returns the index of the first word that is neither an option of `app` nor the value of one: where a program begins. A word "--"
// before it belongs to neither, and is left in front.
std::size_t end_of_options(const CLI::App& app, const std::vector<std::string>& words);

// The help of the whole command line and of each command.
std::string help_text(const Declarations& declarations, const Style& style);
std::string help_text(const DeclaredCommand& command, const Style& style);

}  // namespace cachalot::tools
