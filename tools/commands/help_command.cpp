#include "tools/commands/help_text.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>

#include "cachalot/version.h"
#include "simulator/models/gpu_models.h"
#include "tools/base/text_layout.h"
#include "tools/commands/command.h"

namespace cachalot::tools {
namespace {

bool takes_value(const CLI::Option& option) { return option.get_items_expected_max() > 0; }

// The values that go by a name in usage lines.
std::vector<std::string> choices_of(std::string_view value) {
  if (value == "WHEN") return {"auto", "always", "never"};
  if (value == "SHELL") return {"bash", "zsh", "fish"};
  if (value == "ACTION") return {"show", "set"};
  std::vector<std::string> keys;
  if (value == "GPU") {
    for (const simulator::GpuModel& model : simulator::gpu_models()) keys.emplace_back(model.key);
  }
  return keys;
}

bool names_file(std::string_view value) {
  return value == "FILE" || value == "TRACE" || value == "SNAPSHOT" || value == "OUT";
}

// CLI11 adds what its validators say behind a colon.
std::string type_name(const CLI::Option& option) {
  const std::string name = option.get_type_name();
  return name.substr(0, name.find(':'));
}

OptionText text_of(const CLI::Option& option) {
  OptionText text;
  text.is_positional = option.get_positional();
  for (const std::string& name : option.get_snames()) text.names.push_back("-" + name);
  for (const std::string& name : option.get_lnames()) text.names.push_back("--" + name);
  if (text.is_positional) {
    text.value = option.get_name(/*positional=*/true);
    text.is_repeated = option.get_items_expected_max() > 1;
  } else if (takes_value(option)) {
    text.value = type_name(option);
  }
  text.group = option.get_group();
  text.description = option.get_description();
  text.default_value = option.get_default_str();
  text.choices = choices_of(text.value);
  text.is_file = names_file(text.value);
  text.is_required = option.get_required();
  return text;
}

}  // namespace

std::vector<OptionText> options_of(const CLI::App& app) {
  std::vector<OptionText> texts;
  for (const CLI::Option* option : app.get_options()) {
    if (!option->get_group().empty()) texts.push_back(text_of(*option));  // the others are for ourselves
  }
  return texts;
}

bool takes_files(const CLI::Option& option) {
  return option.get_positional() && names_file(option.get_name(/*positional=*/true));
}

std::string usage_of(const OptionText& option) {
  if (option.is_positional) return option.value + (option.is_repeated ? "..." : "");
  std::string usage;
  for (const std::string& name : option.names) usage += (usage.empty() ? "" : ", ") + name;
  return option.value.empty() ? usage : usage + " " + option.value;
}

CLI::Validator one_of_its_choices(const std::string& value) {
  const auto check = [value](const std::string& given) -> std::string {
    const std::vector<std::string> choices = choices_of(value);
    if (std::ranges::find(choices, given) != choices.end()) return "";
    return fmt::format("'{}' is not one of {}{}", given, fmt::join(choices, ", "), question_about(given, choices));
  };
  return CLI::Validator(check, "");
}

std::size_t end_of_options(const CLI::App& app, const std::vector<std::string>& words) {
  std::size_t at = 0;
  while (at < words.size()) {
    const std::string& word = words[at];
    if (word == "--" || word == "-m" || word == "-c" || !word.starts_with('-') || word.size() == 1) break;
    const std::size_t equals = word.find('=');
    const CLI::Option* const option = app.get_option_no_throw(word.substr(0, equals));
    const bool value_follows = equals == std::string::npos && option != nullptr && takes_value(*option);
    at += value_follows ? 2 : 1;
  }
  return std::min(at, words.size());
}

namespace {

constexpr std::size_t kColumn = 26;  // where descriptions begin

std::string described(const std::string& usage, std::string_view description) {
  const bool is_long = usage.size() + 4 > kColumn;
  const std::string gap = is_long ? "\n" + std::string(kColumn, ' ') : std::string(kColumn - 2 - usage.size(), ' ');
  return "  " + usage + gap + wrapped(description, kColumn);
}

std::string described(const OptionText& option) {
  std::string description = option.description;
  if (!option.default_value.empty()) description += fmt::format(" (default: {})", option.default_value);
  return described(usage_of(option), description);
}

std::string section(std::string_view title, const std::string& lines, const Style& style) {
  return lines.empty() ? "" : "\n" + style.bold(title) + "\n" + lines;
}

// Returns a section for the arguments and one for each group of options, in the order of their declaration.
std::string options_section(const CLI::App& app, const Style& style) {
  std::vector<std::string> titles = {"Arguments"};
  std::map<std::string, std::string> lines;
  for (const OptionText& option : options_of(app)) {
    const std::string title = option.is_positional ? titles.front() : option.group;
    if (std::ranges::find(titles, title) == titles.end()) titles.push_back(title);
    lines[title] += described(option);
  }
  std::string text;
  for (const std::string& title : titles) text += section(title + ":", lines[title], style);
  return text;
}

std::string examples_section(const std::vector<Example>& examples, const Style& style) {
  std::string lines;
  for (const Example& example : examples) {
    lines += fmt::format("{}  {}\n    {}\n", lines.empty() ? "" : "\n", example.what, style.good(example.command));
  }
  return section("Examples:", lines, style);
}

constexpr Example kFirstExamples[] = {
    {"Why did memory run out, or what fills it? A snapshot of a PyTorch program, read:",
     "cachalot explain snapshot.pickle"},
    {"Will it fit on a T4? No GPU is needed:", "cachalot simulate --gpu t4 train.py"},
    {"How much less memory would other allocator policies hold?", "cachalot compare snapshot.pickle"},
    {"Run a program with cachalot as PyTorch's allocator:", "cachalot run --config heap:pages train.py"},
};

}  // namespace

std::string help_text(const Declarations& declarations, const Style& style) {
  std::string text = style.bold("Usage:") + " cachalot [OPTIONS] COMMAND ...\n\n";
  text += wrapped(declarations.root.get_description(), 0);
  std::string commands;
  for (const DeclaredCommand& command : declarations.commands) {
    commands += described(std::string(command.text().name), command.text().summary);
  }
  text += section("Commands:", commands, style);
  text += options_section(declarations.root, style);
  text += examples_section({std::begin(kFirstExamples), std::end(kFirstExamples)}, style);
  return text + "\n`cachalot help COMMAND` says more of a command.\n";
}

std::string help_text(const DeclaredCommand& command, const Style& style) {
  const CommandText& words = command.text();
  std::string text = fmt::format("{} cachalot {} {}\n\n", style.bold("Usage:"), words.name, words.usage);
  text += wrapped(fmt::format("{}.", words.summary), 0);
  text += options_section(*command.app, style);
  text += examples_section(words.examples, style);
  if (!words.details.empty()) text += "\n" + wrapped(words.details, 0);
  return text;
}

// `cachalot help [COMMAND]`.
namespace {

nlohmann::ordered_json json_of(const OptionText& option) {
  return {{"names", option.names},
          {"value", option.value},
          {"group", option.group},
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
    static const CommandText text = {
        .name = "help", .usage = "[OPTIONS] [COMMAND]", .summary = "Print the help of a command"};
    return text;
  }

  void declare(CLI::App& app) override {
    app.add_option("COMMAND", command_, "The command; the whole help without one");
    app.option_defaults()->group(kOutputOptions);
    app.add_flag("--json", json_, "Print the commands with their options as JSON, one object on each line");
  }

  int run(const Styles& styles) override {
    const DeclaredCommand* const found = command_.empty() ? nullptr : &declarations_.find(command_);
    if (!json_) print(found == nullptr ? help_text(declarations_, styles.out) : help_text(*found, styles.out));
    for (const DeclaredCommand& each : declarations_.commands) {
      if (json_ && (found == nullptr || found == &each)) print(tools::text_of(json_of(each)) + "\n");
    }
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
    if (c == '-' || c == '\\') result += '\\';
    result += c == '\\' ? 'e' : c;
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

constexpr std::pair<std::string_view, std::string_view> kVariables[] = {
    // and what they mean
    {"CACHALOT_CONF", "The allocator's options for replay and run, where --config is not given."},
    {"CACHALOT_PYTHON", "The Python that simulate and run give scripts to."},
    {"CACHALOT_SIMULATOR", "The folder with the simulated CUDA runtime, where it is not beside the command."},
    {"NO_COLOR", "Not empty: no colours, unless --color always is given."},
};

std::string man_page(const Declarations& declarations) {
  std::string page =
      ".TH CACHALOT 1 \"" + std::string(kReleased) + "\" \"cachalot " CACHALOT_VERSION_STRING "\" \"User Commands\"\n";
  page += ".SH NAME\ncachalot \\- GPU memory: snapshots, simulated GPUs, allocator policies\n";
  page += ".SH SYNOPSIS\n.B cachalot\n[OPTIONS] COMMAND ...\n";
  page += ".SH DESCRIPTION\n" + roff(declarations.root.get_description()) + "\n";
  page += ".SH OPTIONS\n" + roff_options(declarations.root);
  page += ".SH COMMANDS\n";
  for (const DeclaredCommand& command : declarations.commands) page += roff_command(command);
  page += ".SH ENVIRONMENT\n";
  for (const auto& [name, meaning] : kVariables) page += fmt::format(".TP\n.B {}\n{}\n", name, roff(meaning));
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
                                     .examples = {{"Read it:", "cachalot man | man -l -"}}};
    return text;
  }

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
