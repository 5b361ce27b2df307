#include "tools/commands/option_text.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "base/suggestions.h"
#include "simulator/gpu_models.h"

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

}  // namespace cachalot::tools
