// Runs a test's body in a process of its own: the C API's allocator belongs to the process and reads the environment
// once. The parent must not use the API.
#pragma once

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <map>
#include <string>

namespace cachalot::testing {

using Environment = std::map<std::string, std::string>;

inline constexpr int kSkipped = 77;
inline constexpr std::size_t kMiB = std::size_t{1} << 20;

inline void set_environment(const Environment& environment) {
  for (const char* name :
       {"CACHALOT_CONF", "CACHALOT_DEBUG", "CACHALOT_PUBLISH", "CACHALOT_PUBLISH_DIR", "CACHALOT_SIMULATE"})
    unsetenv(name);
  for (const auto& [name, value] : environment) setenv(name.c_str(), value.c_str(), 1);
}

// The exit status of a process that runs `body` (kSkipped when it skips); failures in it are printed by it.
template <typename Body>
int status_of_fresh_process(const Environment& environment, Body body) {
  std::fflush(nullptr);
  const pid_t child = fork();
  if (child == 0) {
    set_environment(environment);
    body();
    std::fflush(nullptr);
    _exit(::testing::Test::HasFailure() ? 1 : ::testing::Test::IsSkipped() ? kSkipped : 0);
  }
  int status = -1;
  if (child < 0 || waitpid(child, &status, 0) != child || !WIFEXITED(status)) return -1;
  return WEXITSTATUS(status);
}

// On simulated devices, whatever the machine has and CACHALOT_SIM says.
template <typename Body>
void in_fresh_process(Environment environment, Body body) {
  environment.emplace("CACHALOT_SIMULATE", "1");
  environment.emplace("CACHALOT_SIM", "");
  EXPECT_EQ(status_of_fresh_process(environment, body), 0) << "the process failed or died";
}

template <typename Body>
void in_fresh_process(Body body) {
  in_fresh_process({}, body);
}

}  // namespace cachalot::testing
