// Runs a program and waits for its end, for so long and not longer where the caller says so.
#pragma once

#include <atomic>
#include <optional>
#include <string>
#include <vector>

namespace cachalot::tools {

class ForkServer;

struct ChildProgram {
  std::vector<std::string> words;        // the program, found on PATH, and its arguments
  std::vector<std::string> environment;  // "NAME=value"
  std::string output_path;               // the file that gets standard output and error; empty: they go where ours go
  std::optional<double> most_seconds;    // then it gets SIGTERM, and SIGKILL if it is still there ten seconds later
  // Signals that would end this process are the program's while it runs: SIGTERM is passed on to it; SIGINT and SIGQUIT,
  // which a terminal sends to both, are ignored here. Of one program at a time.
  bool has_our_signals = false;
  ForkServer* fork_server = nullptr;        // starts the program, if it is set; only programs that python_words knows
  const std::atomic<bool>* stop = nullptr;  // ends it as if its time was over, when it becomes true
};

struct ChildEnd {
  int process = 0;       // its id
  int exit_code = 0;     // 128 + n after signal n, as shells have it
  bool is_late = false;  // it was ended because its time was over
};

// Throws InvalidArgument where the program cannot be run. Thread-safe, but for programs that have our signals.
ChildEnd run_to_end(ChildProgram program);

}  // namespace cachalot::tools
