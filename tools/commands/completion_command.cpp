// `cachalot completion SHELL`: prints what makes a shell complete cachalot's words.
#include "tools/commands/command.h"
#include "tools/commands/completion_scripts.h"
#include "tools/commands/option_text.h"

namespace cachalot::tools {
namespace {

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
    if (shell_ == "bash") {
      print(bash_completion(declarations_));
    } else if (shell_ == "zsh") {
      print(zsh_completion(declarations_));
    } else {
      print(fish_completion(declarations_));
    }
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
