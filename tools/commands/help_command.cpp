#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "base/check.h"
#include "base/suggestions.h"
#include "cachalot/version.h"
#include "tools/commands/command.h"
#include "tools/commands/help_text.h"
#include "tools/text_layout.h"

namespace cachalot::tools {

// `cachalot help [COMMAND]`.
namespace {

nlohmann::ordered_json json_of(const OptionText& option) {
  return {{"names", option.names},
          {"value", option.value},
          {"description", option.description},
          {"default", option.default_value},
          {"choices", option.choices},
          {"is_positional", option.is_positional},
          {"is_repeated", option.is_repeated},
          {"is_file", option.is_file},
          {"is_required", option.is_required}};
}

nlohmann::ordered_json json_of(const DeclaredCommand& declared) {
  nlohmann::ordered_json options = nlohmann::ordered_json::array();
  for (const OptionText& option : options_of(*declared.app)) options.push_back(json_of(option));
  return {{"name", declared.text().name},
          {"usage", declared.text().usage},
          {"summary", declared.text().summary},
          {"details", declared.text().details},
          {"takes_program", declared.command->takes_program()},
          {"options", std::move(options)}};
}

class HelpCommand : public Command {
 public:
  explicit HelpCommand(const Declarations& declarations) : declarations_(declarations) {}

  const CommandText& text() const override {
    static const CommandText text = {.name = "help",
                                     .usage = "[OPTIONS] [COMMAND]",
                                     .summary = "Print the help of a command",
                                     .details = "",
                                     .examples = {}};
    return text;
  }

  void declare(CLI::App& app) override {
    app.add_option("COMMAND", command_, "The command; the whole help without one");
    app.add_flag("--json", json_, "Print the commands with their options as JSON, one object on each line");
  }

  int run(const Styles& styles) override {
    if (command_.empty()) {
      if (!json_) print(help_text(declarations_, styles.out));
      for (const DeclaredCommand& each : declarations_.commands) {
        if (json_) print(tools::text_of(json_of(each)) + "\n");
      }
      return 0;
    }
    const DeclaredCommand* const found = declarations_.find(command_);
    const std::vector<std::string_view> names = declarations_.names();
    const std::string question = did_you_mean(command_, names);
    CACHALOT_REQUIRE(found != nullptr, "'{}' is not a command{}{} (see cachalot --help)", command_,
                     question.empty() ? "" : "; ", question);
    print(json_ ? tools::text_of(json_of(*found)) + "\n" : help_text(*found, styles.out));
    return 0;
  }

 private:
  const Declarations& declarations_;
  std::string command_;
  bool json_ = false;
};

}  // namespace

std::unique_ptr<Command> make_help_command(const Declarations& declarations) {
  return std::make_unique<HelpCommand>(declarations);
}

// `cachalot man`: prints the manual page, made of the declarations.
namespace {

constexpr std::string_view kReleased = "2026-11-28";  // the date of this version in CHANGELOG.md

// Text as roff takes it: dashes that can be copied, and no line that begins as a request.
std::string roff(std::string_view text) {
  std::string result;
  for (const char c : text) {
    const bool at_start = result.empty() || result.back() == '\n';
    if (at_start && (c == '.' || c == '\'')) result += "\\&";
    if (c == '-') {
      result += "\\-";
    } else if (c == '\\') {
      result += "\\e";
    } else {
      result += c;
    }
  }
  return result;
}

std::string paragraphs(std::string_view text) {
  std::string result;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find("\n\n"), text.size());
    result += ".PP\n" + roff(text.substr(0, end)) + "\n";
    text.remove_prefix(std::min(end + 2, text.size()));
  }
  return result;
}

std::string roff_options(const CLI::App& app) {
  std::string result;
  for (const OptionText& option : options_of(app)) {
    result += fmt::format(".TP\n.B {}\n{}", roff(usage_of(option)), roff(option.description));
    if (!option.default_value.empty()) result += fmt::format(" (default: {})", roff(option.default_value));
    result += "\n";
  }
  return result;
}

std::string roff_command(const DeclaredCommand& command) {
  const CommandText& text = command.text();
  std::string result = fmt::format(".SS cachalot {} {}\n{}.\n", text.name, roff(text.usage), roff(text.summary));
  result += roff_options(*command.app) + paragraphs(text.details);
  for (const Example& example : text.examples) {
    result += fmt::format(".PP\n{}\n.PP\n.RS\n.B {}\n.RE\n", roff(example.what), roff(example.command));
  }
  return result;
}

struct Variable {
  std::string_view name;
  std::string_view meaning;
};

constexpr Variable kVariables[] = {
    {"CACHALOT_CONF", "The allocator's options for replay and run, where --config is not given."},
    {"CACHALOT_PYTHON", "The Python that simulate and run give scripts to."},
    {"CACHALOT_SIMULATOR", "The folder with the simulated CUDA runtime, where it is not beside the command."},
    {"NO_COLOR", "Not empty: no colours, unless --color always is given."},
};

std::string roff_variables() {
  std::string result;
  for (const Variable& variable : kVariables) {
    result += fmt::format(".TP\n.B {}\n{}\n", variable.name, roff(variable.meaning));
  }
  return result;
}

std::string man_page(const Declarations& declarations) {
  std::string page =
      ".TH CACHALOT 1 \"" + std::string(kReleased) + "\" \"cachalot " CACHALOT_VERSION_STRING "\" \"User Commands\"\n";
  page += ".SH NAME\ncachalot \\- GPU memory: snapshots, simulated GPUs, allocator policies\n";
  page += ".SH SYNOPSIS\n.B cachalot\n[OPTIONS] COMMAND ...\n";
  page += ".SH DESCRIPTION\n" + roff(declarations.root.get_description()) + "\n";
  page += ".SH OPTIONS\n" + roff_options(declarations.root);
  page += ".SH COMMANDS\n";
  for (const DeclaredCommand& command : declarations.commands) page += roff_command(command);
  page += ".SH ENVIRONMENT\n" + roff_variables();
  page +=
      ".SH EXIT STATUS\n0 after success, 2 after an error, which one line on standard error tells. simulate and run "
      "end with the exit code of their program.\n";
  return page;
}

class ManCommand : public Command {
 public:
  explicit ManCommand(const Declarations& declarations) : declarations_(declarations) {}

  const CommandText& text() const override {
    static const CommandText text = {.name = "man",
                                     .usage = "",
                                     .summary = "Print the manual page",
                                     .details = "",
                                     .examples = {{"Read it:", "cachalot man | man -l -"}}};
    return text;
  }

  void declare(CLI::App&) override {}

  int run(const Styles&) override {
    print(man_page(declarations_));
    return 0;
  }

 private:
  const Declarations& declarations_;
};

}  // namespace

std::unique_ptr<Command> make_man_command(const Declarations& declarations) {
  return std::make_unique<ManCommand>(declarations);
}

}  // namespace cachalot::tools
