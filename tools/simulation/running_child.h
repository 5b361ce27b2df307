// Programs that this process starts: run to their end, for so long and not longer where the caller says so.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <chrono>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tools/base/descriptor.h"

namespace cachalot::tools {

// A program that was started, until it has ended: a child of this process, or of a fork server.
class RunningChild {
 public:
  using Clock = std::chrono::steady_clock;
  static constexpr auto kTick = std::chrono::milliseconds(10);  // between two questions whether it has ended

  explicit RunningChild(pid_t process) : process_(process) {}
  // A child of a fork server, which writes "ended <status>" into `replies`.
  RunningChild(pid_t process, Descriptor replies) : process_(process), replies_(std::move(replies)) {}

  pid_t process() const { return process_; }

  // Waits for the end. Returns the status as waitpid has it; that of a killed program if it is not known.
  int wait();

  // Returns the status if the program has ended, and nullopt if it still runs. Must not be called after it has returned
  // a status.
  std::optional<int> status();

 private:
  std::optional<int> status_told();

  pid_t process_;
  Descriptor replies_;
  std::string told_;  // of a line in replies_
};

// Runs a program and waits for its end, for so long and not longer where the caller says so.
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

// Throws InvalidArgument where the program cannot be run. Thread-safe, except for programs that have our signals.
ChildEnd run_to_end(ChildProgram program);

}  // namespace cachalot::tools
