// `cachalot help [COMMAND]`.
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "base/check.h"
#include "base/suggestions.h"
#include "tools/commands/command.h"
#include "tools/commands/help_text.h"
#include "tools/json_text.h"

namespace cachalot::tools {
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

}  // namespace cachalot::tools
