// A program that was started, until it has ended: a child of this process, or of a fork server.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <optional>
#include <string>
#include <utility>

#include "tools/descriptor.h"

namespace cachalot::tools {

class RunningChild {
 public:
  using Clock = std::chrono::steady_clock;
  static constexpr auto kTick = std::chrono::milliseconds(10);  // between two questions whether it has ended

  explicit RunningChild(pid_t process) : process_(process) {}
  // A child of a fork server, which writes "ended <status>" into `replies`.
  RunningChild(pid_t process, Descriptor replies) : process_(process), replies_(std::move(replies)) {}

  pid_t process() const { return process_; }

  // Waits for the end. Returns the status as waitpid has it; that of a killed program if nobody can tell.
  int wait();

  // Returns the status if the program has ended, and nullopt if it has not. Must not be called after it has returned a
  // status.
  std::optional<int> status();

 private:
  std::optional<int> status_told();

  pid_t process_;
  Descriptor replies_;
  std::string told_;  // of a line in replies_
};

// Ends a program and all that it has started: by SIGTERM, so that they write their reports, and by SIGKILL those that are
// still there ten seconds later. Returns the program's status.
int end_with_descendants(RunningChild& child);

}  // namespace cachalot::tools
