#include <fmt/format.h>
#include <fmt/ranges.h>

#include "tools/commands/completion_scripts.h"
#include "tools/commands/option_text.h"

namespace cachalot::tools {
namespace {

// Inside single quotes; `special` letters have a meaning of their own in _arguments and _describe.
std::string zsh_escaped(std::string_view text, std::string_view special) {
  std::string result;
  for (const char c : text) {
    if (c == '\'') {
      result += "'\\''";
      continue;
    }
    if (special.find(c) != std::string_view::npos) result += '\\';
    result += c;
  }
  return result;
}

std::string zsh_values(const OptionText& option) {
  if (!option.choices.empty()) return fmt::format("({})", fmt::join(option.choices, " "));
  return option.is_file ? "_files" : " ";
}

std::string zsh_option(const OptionText& option, const std::string& name) {
  const std::string about = zsh_escaped(option.description, "[]:\\");
  if (option.value.empty()) return fmt::format("      '{}[{}]' \\\n", name, about);
  return fmt::format("      '{}=[{}]:{}:{}' \\\n", name, about, option.value, zsh_values(option));
}

std::string zsh_positional(const Declarations& declarations, const OptionText& option) {
  std::string values = zsh_values(option);
  if (option.value == "COMMAND") values = fmt::format("({})", fmt::join(declarations.names(), " "));
  return fmt::format("      '{}:{}:{}' \\\n", option.is_repeated ? "*" : "1", option.value, values);
}

std::string zsh_arguments(const Declarations& declarations, const CLI::App& app) {
  std::string lines;
  for (const OptionText& option : options_of(app)) {
    if (option.is_positional) lines += zsh_positional(declarations, option);
    for (const std::string& name : option.names) {
      const bool is_short = name.size() == 2;
      OptionText shown = option;
      if (is_short) shown.value.clear();
      lines += zsh_option(shown, name);
    }
  }
  return lines;
}

std::string zsh_command_case(const Declarations& declarations, const DeclaredCommand& command) {
  std::string lines = zsh_arguments(declarations, *command.app);
  if (command.command->takes_program()) lines += "      '(-)*:::program:_cachalot_program' \\\n";
  return fmt::format("  {}) _arguments -s \\\n{}      && return ;;\n", command.text().name, lines);
}

}  // namespace

std::string zsh_completion(const Declarations& declarations) {
  std::string script =
      "#compdef cachalot\n"
      "# zsh completion for cachalot; `cachalot completion zsh` prints this.\n\n"
      "_cachalot_program() {\n"
      "  if ((CURRENT == 1)); then _alternative 'files:script:_files' 'commands:program:_command_names -e'; else "
      "_normal; "
      "fi\n"
      "}\n\n"
      "_cachalot() {\n"
      "  local -a commands=(\n";
  for (const DeclaredCommand& command : declarations.commands) {
    script += fmt::format("    '{}:{}'\n", command.text().name, zsh_escaped(command.text().summary, ":\\"));
  }
  script +=
      "  )\n"
      "  local curcontext=$curcontext state line\n"
      "  _arguments -C \\\n" +
      zsh_arguments(declarations, declarations.root) +
      "      '1:command:->command' \\\n"
      "      '*::argument:->argument' && return\n"
      "  if [[ $state == command ]]; then\n"
      "    _describe -t commands command commands\n"
      "    return\n"
      "  fi\n"
      "  case $words[1] in\n";
  for (const DeclaredCommand& command : declarations.commands) script += zsh_command_case(declarations, command);
  return script +
         "  esac\n"
         "}\n\n"
         "if [[ $funcstack[1] == _cachalot ]]; then _cachalot \"$@\"; else compdef _cachalot cachalot; fi\n";
}

}  // namespace cachalot::tools
