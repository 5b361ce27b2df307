#include "tools/commands/help_text.h"

#include <fmt/format.h>

#include <algorithm>

#include "tools/commands/option_text.h"
#include "tools/text_layout.h"

namespace cachalot::tools {
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
