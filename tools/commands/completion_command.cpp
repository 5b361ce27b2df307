// `cachalot completion SHELL`: prints what makes a shell complete cachalot's words.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "tools/commands/command.h"
#include "tools/commands/help_text.h"

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

// Returns the options, COMMAND with the names of the commands.
std::vector<OptionText> completed_options(const Declarations& declarations, const CLI::App& app) {
  std::vector<OptionText> options = options_of(app);
  for (OptionText& option : options) {
    if (option.value != "COMMAND") continue;
    for (const std::string_view name : declarations.names()) option.choices.emplace_back(name);
  }
  return options;
}

// BashValues collects what bash does about the options that a value follows.
struct BashValues {
  std::string patterns;  // of _cachalot_takes_value
  std::string cases;     // by "command option"

  void add(const std::string& command, const CLI::App& app) {
    std::vector<std::string> followed;
    for (const OptionText& option : options_of(app)) {
      if (option.is_positional || option.value.empty()) continue;
      std::string action = "return";  // nothing is known of the value
      if (option.is_file) action = "_cachalot_files \"$current\"; return";
      if (!option.choices.empty()) {
        action = fmt::format("COMPREPLY=($(compgen -W {} -- \"$current\")); return", quoted(option.choices));
      }
      for (const std::string& name : option.names) {
        followed.push_back(fmt::format("\"{} {}\"", command, name));
        cases += fmt::format("    {}) {} ;;\n", followed.back(), action);
      }
    }
    if (!followed.empty()) patterns += fmt::format("    {}) return 0 ;;\n", fmt::join(followed, " | "));
  }
};

std::vector<std::string> option_names(const CLI::App& app) {
  std::vector<std::string> names;
  for (const OptionText& option : options_of(app)) names.insert(names.end(), option.names.begin(), option.names.end());
  return names;
}

// Returns the completions where no option is expected: files, a program, the names of commands or of shells.
std::string positional_action(const Declarations& declarations, const DeclaredCommand& command) {
  if (command.command->takes_program()) return "_cachalot_files \"$current\"";
  for (const OptionText& option : completed_options(declarations, *command.app)) {
    if (!option.is_positional) continue;
    if (option.is_file) return "_cachalot_files \"$current\"";
    return fmt::format("COMPREPLY=($(compgen -W {} -- \"$current\"))", quoted(option.choices));
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

std::string bash_completion(const Declarations& declarations) {
  BashValues values;
  values.add("", declarations.root);
  for (const auto& command : declarations.commands) values.add(std::string(command.text().name), *command.app);
  std::string script = fmt::format("{}{}{}", kBegin, values.patterns, kMiddle);
  script += program_case(declarations);  // a program has options of its own
  script += "  case \"$command $previous\" in\n" + values.cases;
  script += "  esac\n  case $command in\n";
  std::vector<std::string> first = option_names(declarations.root);
  for (const std::string_view name : declarations.names()) first.emplace_back(name);
  script += fmt::format("    \"\") COMPREPLY=($(compgen -W {} -- \"$current\")) ;;\n", quoted(first));
  for (const DeclaredCommand& command : declarations.commands) script += command_case(declarations, command);
  return script + "  esac\n}\n\ncomplete -F _cachalot cachalot\n";
}

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

std::string zsh_arguments(const Declarations& declarations, const CLI::App& app) {
  std::string lines;
  for (const OptionText& option : completed_options(declarations, app)) {
    if (option.is_positional) {
      lines += fmt::format("      '{}:{}:{}' \\\n", option.is_repeated ? "*" : "1", option.value, zsh_values(option));
    }
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

std::string zsh_completion(const Declarations& declarations) {
  std::string script =
      "#compdef cachalot\n"
      "# zsh completion for cachalot; `cachalot completion zsh` prints this.\n\n"
      "_cachalot_program() {\n"
      "  if ((CURRENT == 1)); then _alternative 'files:script:_files' 'commands:program:_command_names -e'; else "
      "_normal; fi\n"
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
  for (const OptionText& option : completed_options(declarations, *command.app)) {
    if (!option.is_positional) continue;
    if (option.is_file) return fmt::format("complete -c cachalot -n '{}' -F\n", condition);
    const std::string words = fmt::format("{}", fmt::join(option.choices, " "));
    return fmt::format("complete -c cachalot -n '{}' -a {}\n", condition, fish_quoted(words));
  }
  return "";
}

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

class CompletionCommand : public Command {
 public:
  explicit CompletionCommand(const Declarations& declarations) : declarations_(declarations) {}

  const CommandText& text() const override {
    static const CommandText text = {
        .name = "completion",
        .usage = "SHELL",
        .summary = "Print the completion script for bash, zsh or fish",
        .details = "An installed cachalot has the scripts in the shells' own folders already.",
        .examples = {{"bash, in ~/.bashrc:", "source <(cachalot completion bash)"},
                     {"zsh, in ~/.zshrc behind compinit:", "source <(cachalot completion zsh)"},
                     {"fish:", "cachalot completion fish > ~/.config/fish/completions/cachalot.fish"}}};
    return text;
  }

  void declare(CLI::App& app) override {
    app.add_option("SHELL", shell_, "bash, zsh or fish")->required()->check(one_of_its_choices("SHELL"));
  }

  int run(const Styles&) override {
    const auto script = shell_ == "bash" ? bash_completion : shell_ == "zsh" ? zsh_completion : fish_completion;
    print(script(declarations_));
    return 0;
  }

 private:
  const Declarations& declarations_;
  std::string shell_;
};

}  // namespace

std::unique_ptr<Command> make_completion_command(const Declarations& declarations) {
  return std::make_unique<CompletionCommand>(declarations);
}

}  // namespace cachalot::tools
