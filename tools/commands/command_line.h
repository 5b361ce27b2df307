// The command line of `cachalot`: finds the command, reads its options and runs it.
#pragma once

#include <string>
#include <vector>

#include "tools/commands/command.h"

namespace cachalot::tools {

class CommandLine {
 public:
  CommandLine();

  // Runs the words behind "cachalot". Returns the exit code; tells errors in one line on standard error.
  int run(std::vector<std::string> words);

 private:
  int run_words(std::vector<std::string> words);
  int run_command(const DeclaredCommand& command, std::vector<std::string> words);
  // Reads options into the command's variables. Throws InvalidArgument, which says what is wrong and what was meant.
  void parse(CLI::App& app, const std::string& name, std::vector<std::string> words);
  std::vector<std::string> take_program(const DeclaredCommand& command, std::vector<std::string>& words) const;
  void add_common_options(CLI::App& app);
  Styles styles() const;

  Declarations declarations_;
  std::string color_ = "auto";
  bool wants_help_ = false;
  bool wants_version_ = false;
};

}  // namespace cachalot::tools
