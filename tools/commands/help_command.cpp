// `cachalot help [COMMAND]`.
#include <fmt/format.h>

#include "base/check.h"
#include "base/suggestions.h"
#include "tools/commands/command.h"
#include "tools/commands/help_text.h"

namespace cachalot::tools {
namespace {

class HelpCommand : public Command {
 public:
  explicit HelpCommand(const Declarations& declarations) : declarations_(declarations) {}

  const CommandText& text() const override {
    static const CommandText text = {
        .name = "help", .usage = "[COMMAND]", .summary = "Print the help of a command", .details = "", .examples = {}};
    return text;
  }

  void declare(CLI::App& app) override {
    app.add_option("COMMAND", command_, "The command; the whole help without one");
  }

  int run(const Styles& styles) override {
    if (command_.empty()) {
      print(help_text(declarations_, styles.out));
      return 0;
    }
    const DeclaredCommand* const found = declarations_.find(command_);
    const std::vector<std::string_view> names = declarations_.names();
    const std::string question = did_you_mean(command_, names);
    CACHALOT_REQUIRE(found != nullptr, "'{}' is not a command{}{} (see cachalot --help)", command_,
                     question.empty() ? "" : "; ", question);
    print(help_text(*found, styles.out));
    return 0;
  }

 private:
  const Declarations& declarations_;
  std::string command_;
};

}  // namespace

std::unique_ptr<Command> make_help_command(const Declarations& declarations) {
  return std::make_unique<HelpCommand>(declarations);
}

}  // namespace cachalot::tools
