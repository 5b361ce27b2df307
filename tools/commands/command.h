// The parts of every command of `cachalot`: its words for help, its options, and its action.
//
// Help, completion and the man page are made of these declarations, so that none of them can be stale.
#pragma once

#include <CLI/CLI.hpp>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "tools/base/text_layout.h"

namespace cachalot::tools {

inline constexpr int kUsageError = 2;  // exit code after an error that one line tells

// The groups of options in help. CLI11's option_defaults() name that of the options which are declared next; a group without
// a name is for ourselves.
inline constexpr const char* kOptions = "Options";  // of options that are declared without a group
inline constexpr const char* kOutputOptions = "Options of the output";
inline constexpr const char* kRunOptions = "Options of the simulated run";
inline constexpr const char* kCommonOptions = "Options of every command";

struct Example {
  std::string_view what;     // "Would the training fit on a T4?"
  std::string_view command;  // "cachalot simulate --gpu t4 train.py"
};

// The help text of a command beyond its options.
struct CommandText {
  std::string_view name;     // "replay"
  std::string_view usage;    // the words behind the name: "[OPTIONS] TRACE..."
  std::string_view summary;  // one line, without a full stop
  std::string details{};     // paragraphs, separated by empty lines
  std::vector<Example> examples{};
};

class Command {
 public:
  virtual ~Command() = default;
  virtual const CommandText& text() const = 0;
  // Declares the options, if there are any, on `app`, which lives as long as the command.
  virtual void declare(CLI::App& /*app*/) {}
  // Returns whether a program with arguments of its own follows the options.
  virtual bool takes_program() const { return false; }
  // Returns whether such a program may follow "--": other words are the command's own.
  virtual bool takes_program_after_dashes() const { return false; }
  // Is called before run() where one of the two is true.
  virtual void set_program(const std::vector<std::string>& /*words*/) {}
  // Returns the exit code. May throw any standard exception: the caller tells what it says.
  virtual int run(const Styles& styles) = 0;
};

// A command that is declared, as help, completion and the man page see it.
struct DeclaredCommand {
  std::unique_ptr<Command> command;
  std::unique_ptr<CLI::App> app;

  const CommandText& text() const { return command->text(); }
};

// The whole command line: what stands before a command, and every command.
struct Declarations {
  CLI::App root;
  std::vector<DeclaredCommand> commands;

  // Returns the command. Throws InvalidArgument, which says what was meant, where there is none.
  const DeclaredCommand& find(std::string_view name) const;
  std::vector<std::string_view> names() const;
};

std::unique_ptr<Command> make_advise_command();
std::unique_ptr<Command> make_budget_command();
std::unique_ptr<Command> make_check_command();
std::unique_ptr<Command> make_compare_command();
std::unique_ptr<Command> make_convert_command();
std::unique_ptr<Command> make_diff_command();
std::unique_ptr<Command> make_explain_command();
std::unique_ptr<Command> make_fit_command();
std::unique_ptr<Command> make_gpus_command();
std::unique_ptr<Command> make_replay_command();
std::unique_ptr<Command> make_run_command();
std::unique_ptr<Command> make_simulate_command();
std::unique_ptr<Command> make_snapshot_command();
std::unique_ptr<Command> make_top_command();
// These speak of the whole command line.
std::unique_ptr<Command> make_completion_command(const Declarations& declarations);
std::unique_ptr<Command> make_help_command(const Declarations& declarations);
std::unique_ptr<Command> make_man_command(const Declarations& declarations);

// Writes to standard output at once, so that a reader of a pipe sees each part when it is done.
void print(std::string_view text);
// Writes to standard error. If that cannot be written, it has no reader, and the command goes on.
void tell(std::string_view text);

}  // namespace cachalot::tools
