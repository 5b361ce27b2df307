#include <fmt/format.h>
#include <fmt/ranges.h>

#include "tools/commands/completion_scripts.h"
#include "tools/commands/option_text.h"

namespace cachalot::tools {
namespace {

std::string fish_quoted(std::string_view text) {
  std::string result = "'";
  for (const char c : text) {
    if (c == '\'' || c == '\\') result += '\\';
    result += c;
  }
  return result + "'";
}

std::string fish_names(const OptionText& option) {
  std::string names;
  for (const std::string& name : option.names) {
    names += name.starts_with("--") ? fmt::format(" -l {}", name.substr(2)) : fmt::format(" -s {}", name.substr(1));
  }
  return names;
}

std::string fish_values(const OptionText& option) {
  if (option.value.empty()) return "";
  if (option.is_file) return " -r -F";
  if (option.choices.empty()) return " -x";
  return fmt::format(" -x -a {}", fish_quoted(fmt::format("{}", fmt::join(option.choices, " "))));
}

std::string fish_options(const std::string& condition, const CLI::App& app) {
  std::string lines;
  for (const OptionText& option : options_of(app)) {
    if (option.is_positional) continue;
    lines += fmt::format("complete -c cachalot -n '{}'{}{} -d {}\n", condition, fish_names(option), fish_values(option),
                         fish_quoted(option.description));
  }
  return lines;
}

std::string fish_positionals(const Declarations& declarations, const std::string& condition,
                             const DeclaredCommand& command) {
  if (command.command->takes_program()) {
    return fmt::format("complete -c cachalot -n '{}' -F -a '(__fish_complete_subcommand --fcs-skip=2)'\n", condition);
  }
  for (const OptionText& option : options_of(*command.app)) {
    if (!option.is_positional) continue;
    if (option.is_file) return fmt::format("complete -c cachalot -n '{}' -F\n", condition);
    std::string words = fmt::format("{}", fmt::join(option.choices, " "));
    if (option.value == "COMMAND") words = fmt::format("{}", fmt::join(declarations.names(), " "));
    return fmt::format("complete -c cachalot -n '{}' -a {}\n", condition, fish_quoted(words));
  }
  return "";
}

}  // namespace

std::string fish_completion(const Declarations& declarations) {
  std::string script =
      "# fish completion for cachalot; `cachalot completion fish` prints this.\n\n"
      "complete -c cachalot -f\n";
  const std::string first = "__fish_use_subcommand";
  script += fish_options(first, declarations.root);
  for (const DeclaredCommand& command : declarations.commands) {
    script += fmt::format("complete -c cachalot -n '{}' -a {} -d {}\n", first, command.text().name,
                          fish_quoted(command.text().summary));
  }
  for (const DeclaredCommand& command : declarations.commands) {
    const std::string condition = fmt::format("__fish_seen_subcommand_from {}", command.text().name);
    script += "\n" + fish_options(condition, *command.app) + fish_positionals(declarations, condition, command);
  }
  return script;
}

}  // namespace cachalot::tools
