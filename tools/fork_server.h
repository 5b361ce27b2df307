// Starts Python programs as forks of a process that has imported what they import, which saves most of the time of a short run.
//
// The process is simulator/python/cachalot_simulator/fork_server.py, which describes what a program finds, and the protocol.
#pragma once

#include <atomic>
#include <optional>
#include <string>
#include <vector>

#include "tools/python_server.h"
#include "tools/running_child.h"

namespace cachalot::tools {

// A program of Python, in two parts.
struct PythonWords {
  std::vector<std::string> interpreter;  // and its options
  std::vector<std::string> arguments;    // the script, -m or -c, and what follows
};

// Returns nullopt for a program that a fork server cannot run: not Python's, or with options that are not simple switches.
std::optional<PythonWords> python_words(const std::vector<std::string>& words);

// Thread-safe.
class ForkServer {
 public:
  // Imports the modules in this order. `environment` is "NAME=value", before that of a program. Throws InvalidArgument
  // where the interpreter cannot be run.
  ForkServer(std::vector<std::string> interpreter, const std::vector<std::string>& modules,
             std::vector<std::string> environment);

  // Starts a program with a file for its output. Returns nullopt if the server has gone. Programs that still run when the
  // server ends get SIGTERM. Throws std::runtime_error once `stop`, if it is there, is true.
  std::optional<RunningChild> start(const std::vector<std::string>& arguments,
                                    const std::vector<std::string>& environment, const std::string& output_path,
                                    const std::atomic<bool>* stop);

 private:
  PythonServer server_;
};

}  // namespace cachalot::tools
