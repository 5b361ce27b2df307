// `cachalot run`: runs a Python program with cachalot as PyTorch's allocator.
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <optional>
#include <stdexcept>
#include <utility>

#include "base/check.h"
#include "base/process.h"
#include "tools/commands/command.h"
#include "tools/simulation/python_program.h"

namespace cachalot::tools {
namespace {

class RunCommand : public Command {
 public:
  const CommandText& text() const override {
    static const CommandText text = {
        .name = "run",
        .usage = "[OPTIONS] [--] SCRIPT [ARGUMENTS...]",
        .summary = "Run a Python program with cachalot as PyTorch's GPU memory allocator",
        .details =
            "The same as python -m cachalot. It runs in $CACHALOT_PYTHON, else in the virtual environment's Python, "
            "else in python3, which must have the cachalot package. The words may begin with "
            "the interpreter to use, as in: cachalot run python3.12 train.py. The exit code is the program's.",
        .examples = {{"With PyTorch's own policy, at less host time:", "cachalot run train.py --epochs 3"},
                     {"With the page heap, which holds less memory:", "cachalot run --config heap:pages train.py"},
                     {"A module:", "cachalot run -m package.train"}}};
    return text;
  }

  void declare(CLI::App& app) override {
    app.add_option("--config", config_, "The allocator's options, such as heap:pages; CACHALOT_CONF otherwise")
        ->type_name("OPTIONS");
  }

  bool takes_program() const override { return true; }
  void set_program(const std::vector<std::string>& words) override { program_ = words; }

  // Becomes the interpreter: signals and the exit code are the program's own.
  int run(const Styles&) override {
    std::vector<std::string> words = command_words();
    execvp(words.front().c_str(), argument_vector(words).data());
    throw std::runtime_error(fmt::format("'{}' cannot be run: {}; CACHALOT_PYTHON may name another Python",
                                         words.front(), std::strerror(errno)));
  }

 private:
  std::vector<std::string> command_words() const {
    std::vector<std::string> program = program_;
    std::string python = python_interpreter();
    if (!program.empty() && is_python_interpreter(program.front())) {
      python = program.front();
      program.erase(program.begin());
    }
    CACHALOT_REQUIRE(!program.empty(), "no program was given; an example: cachalot run{} train.py",
                     config_ ? " --config " + *config_ : "");
    std::vector<std::string> words = {python, "-m", "cachalot"};
    if (config_) words.insert(words.end(), {"--config", *config_});
    words.insert(words.end(), program.begin(), program.end());
    return words;
  }

  std::optional<std::string> config_;
  std::vector<std::string> program_;
};

}  // namespace

std::unique_ptr<Command> make_run_command() { return std::make_unique<RunCommand>(); }

}  // namespace cachalot::tools
