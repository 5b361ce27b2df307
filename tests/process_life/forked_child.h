// Runs a test's body in a forked child of the test program, as it is at that moment.
#pragma once

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <exception>
#include <utility>

namespace cachalot::testing {

enum class Ends { by_exit, at_once };  // exit(), with the destructors of static objects, or _exit()

inline constexpr unsigned kDeadlockSeconds = 60;

// Returns the status of waitpid for a child that ends with 0 if nothing failed in `body`; SIGALRM ends one that hangs.
template <typename Body>
int status_of_child(Body&& body, Ends ends = Ends::at_once) {
  std::fflush(nullptr);
  const pid_t child = fork();
  if (child == 0) {
    alarm(kDeadlockSeconds);
    try {
      std::forward<Body>(body)();
    } catch (const std::exception& error) {
      ADD_FAILURE() << "thrown in the child: " << error.what();
    }
    std::fflush(nullptr);
    const int code = ::testing::Test::HasFailure() ? 1 : 0;
    if (ends == Ends::by_exit) std::exit(code);
    _exit(code);
  }
  int status = -1;
  if (child < 0 || waitpid(child, &status, 0) != child) return -1;
  return status;
}

}  // namespace cachalot::testing
