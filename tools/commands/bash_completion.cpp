#include <fmt/format.h>
#include <fmt/ranges.h>

#include "tools/commands/completion_scripts.h"
#include "tools/commands/option_text.h"

namespace cachalot::tools {
namespace {

// The start of the script finds the command, and where a program begins, as the command itself does.
constexpr std::string_view kBegin = R"(# bash completion for cachalot; `cachalot completion bash` prints this.

_cachalot_takes_value() {
  case "$1 $2" in
)";

constexpr std::string_view kMiddle = R"(  esac
  return 1
}

# Sets `command`, and `program` to the index of the word where the command's program begins.
_cachalot_find_command() {
  local i word
  command= program=0
  for ((i = 1; i < COMP_CWORD; i++)); do
    word=${COMP_WORDS[i]}
    if [[ -z $command && $word != -* ]]; then
      command=$word
    elif [[ $word == -- || $word == -m || $word == -c || $word != -* ]]; then
      program=$i
      return
    elif _cachalot_takes_value "$command" "$word"; then
      i=$((i + 1))
      if [[ ${COMP_WORDS[i]} == = ]]; then i=$((i + 1)); fi
    fi
  done
}

_cachalot_files() {
  compopt -o filenames 2>/dev/null
  COMPREPLY=($(compgen -f -- "$1"))
}

_cachalot() {
  local current=${COMP_WORDS[COMP_CWORD]} previous=${COMP_WORDS[COMP_CWORD - 1]} command program
  COMPREPLY=()
  _cachalot_find_command
  if [[ $previous == = ]]; then previous=${COMP_WORDS[COMP_CWORD - 2]}; fi
  if [[ $current == = ]]; then current=; fi
)";

std::string quoted(const std::vector<std::string>& words) { return fmt::format("\"{}\"", fmt::join(words, " ")); }

// "replay --gpu|replay --config": the options of a command that a value follows.
std::string value_patterns(const std::string& command, const CLI::App& app) {
  std::string patterns;
  for (const OptionText& option : options_of(app)) {
    if (option.is_positional || option.value.empty()) continue;
    for (const std::string& name : option.names) {
      patterns += fmt::format("{}\"{} {}\"", patterns.empty() ? "" : " | ", command, name);
    }
  }
  return patterns.empty() ? "" : fmt::format("    {}) return 0 ;;\n", patterns);
}

std::string value_cases(const std::string& command, const CLI::App& app) {
  std::string cases;
  for (const OptionText& option : options_of(app)) {
    if (option.is_positional || option.value.empty()) continue;
    std::string action = "return";  // nothing is known of the value
    if (option.is_file) action = "_cachalot_files \"$current\"; return";
    if (!option.choices.empty()) {
      action = fmt::format("COMPREPLY=($(compgen -W {} -- \"$current\")); return", quoted(option.choices));
    }
    for (const std::string& name : option.names) cases += fmt::format("    \"{} {}\") {} ;;\n", command, name, action);
  }
  return cases;
}

std::vector<std::string> option_names(const CLI::App& app) {
  std::vector<std::string> names;
  for (const OptionText& option : options_of(app)) names.insert(names.end(), option.names.begin(), option.names.end());
  return names;
}

// What stands where no option is expected: files, a program, the names of commands or of shells.
std::string positional_action(const Declarations& declarations, const DeclaredCommand& command) {
  if (command.command->takes_program()) return "_cachalot_files \"$current\"";
  for (const OptionText& option : options_of(*command.app)) {
    if (!option.is_positional) continue;
    if (option.is_file) return "_cachalot_files \"$current\"";
    std::vector<std::string> words = option.choices;
    if (option.value == "COMMAND") {
      for (const std::string_view name : declarations.names()) words.emplace_back(name);
    }
    return fmt::format("COMPREPLY=($(compgen -W {} -- \"$current\"))", quoted(words));
  }
  return ":";
}

std::string command_case(const Declarations& declarations, const DeclaredCommand& command) {
  return fmt::format(
      "    {})\n"
      "      if [[ $current == -* ]]; then\n"
      "        COMPREPLY=($(compgen -W {} -- \"$current\"))\n"
      "      else\n"
      "        {}\n"
      "      fi ;;\n",
      command.text().name, quoted(option_names(*command.app)), positional_action(declarations, command));
}

std::string program_case(const Declarations& declarations) {
  std::vector<std::string> names;
  for (const DeclaredCommand& command : declarations.commands) {
    if (command.command->takes_program()) names.emplace_back(command.text().name);
  }
  return fmt::format(
      "  if ((program > 0)); then\n"
      "    case $command in\n"
      "      {})\n"
      "        if declare -F _command_offset >/dev/null; then _command_offset \"$program\"; else _cachalot_files "
      "\"$current\"; fi\n"
      "        return ;;\n"
      "    esac\n"
      "  fi\n",
      fmt::join(names, " | "));
}

}  // namespace

std::string bash_completion(const Declarations& declarations) {
  std::string script(kBegin);
  script += value_patterns("", declarations.root);
  for (const auto& command : declarations.commands)
    script += value_patterns(std::string(command.text().name), *command.app);
  script += kMiddle;
  script += program_case(declarations) + "  case \"$command $previous\" in\n";  // a program has options of its own
  script += value_cases("", declarations.root);
  for (const auto& command : declarations.commands)
    script += value_cases(std::string(command.text().name), *command.app);
  script += "  esac\n  case $command in\n";
  std::vector<std::string> first = option_names(declarations.root);
  for (const std::string_view name : declarations.names()) first.emplace_back(name);
  script += fmt::format("    \"\") COMPREPLY=($(compgen -W {} -- \"$current\")) ;;\n", quoted(first));
  for (const DeclaredCommand& command : declarations.commands) script += command_case(declarations, command);
  return script + "  esac\n}\n\ncomplete -F _cachalot cachalot\n";
}

}  // namespace cachalot::tools
