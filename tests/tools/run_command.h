// A command as its users run it: through the shell.
#pragma once

#include <sys/wait.h>

#include <cstdlib>
#include <string>

#include "tests/tools/temporary_file.h"

namespace cachalot::tools {

struct Outcome {
  int exit_code = -1;  // -1: a signal ended it
  std::string out;
  std::string err;
};

inline Outcome run_command(const std::string& command) {
  const TemporaryFile out;
  const TemporaryFile err;
  const int status = std::system((command + " >'" + out.path() + "' 2>'" + err.path() + "'").c_str());
  return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, read_whole(out.path()), read_whole(err.path())};
}

}  // namespace cachalot::tools
