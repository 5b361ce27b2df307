#include "tools/commands/help_text.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "base/suggestions.h"
#include "simulator/gpu_models.h"
#include "tools/text_layout.h"

namespace cachalot::tools {
namespace {

bool takes_value(const CLI::Option& option) { return option.get_items_expected_max() > 0; }

// The values that go by a name in usage lines.
std::vector<std::string> choices_of(std::string_view value) {
  if (value == "WHEN") return {"auto", "always", "never"};
  if (value == "SHELL") return {"bash", "zsh", "fish"};
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
    const std::vector<std::string_view> known(choices.begin(), choices.end());
    const std::string question = did_you_mean(given, known);
    return fmt::format("'{}' is not one of {}{}{}", given, fmt::join(choices, ", "), question.empty() ? "" : "; ",
                       question);
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

std::string options_section(const CLI::App& app, const Style& style) {
  std::string arguments;
  std::string options;
  for (const OptionText& option : options_of(app)) (option.is_positional ? arguments : options) += described(option);
  return section("Arguments:", arguments, style) + section("Options:", options, style);
}

std::string examples_section(const std::vector<Example>& examples, const Style& style) {
  std::string lines;
  for (const Example& example : examples) {
    lines += fmt::format("{}  {}\n    {}\n", lines.empty() ? "" : "\n", example.what, style.good(example.command));
  }
  return section("Examples:", lines, style);
}

constexpr Example kFirstExamples[] = {
    {"What fills the GPU's memory? A snapshot of a PyTorch program, read:", "cachalot snapshot snapshot.pickle"},
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

}  // namespace cachalot::tools
