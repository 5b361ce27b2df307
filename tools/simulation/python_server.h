// Processes of Python that answer requests: each request is JSON, and has a pipe of its own for the replies. One starts
// programs as forks of itself, another makes runs on the workers of a Dask scheduler.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <filesystem>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "tools/base/descriptor.h"
#include "tools/simulation/running_child.h"
#include "tools/simulation/simulation.h"

namespace cachalot::tools {

// The process finds a socket as descriptor 3 and a file with a text as descriptor 4. For each request it receives a byte with
// these descriptors: a file with the request, those that the caller sends along, and the pipe, into which it writes lines.
// When the socket ends, it must end. Thread-safe.
class PythonServer {
 public:
  static constexpr int kSocket = 3;  // its number there
  static constexpr int kFile = 4;

  struct Start {
    std::vector<std::string> words;        // the interpreter, found on PATH, and its arguments
    std::vector<std::string> environment;  // "NAME=value"
    std::string text;
  };

  // Throws InvalidArgument where the interpreter cannot be run.
  explicit PythonServer(Start start);
  // Waits for the process's end; after ten seconds it is killed.
  ~PythonServer();
  PythonServer(const PythonServer&) = delete;
  PythonServer& operator=(const PythonServer&) = delete;

  // Returns the pipe with the replies, and nullopt if the server has gone. Throws InvalidArgument where the request has text
  // that is not UTF-8.
  std::optional<Descriptor> ask(const nlohmann::json& request, const std::vector<int>& descriptors);

 private:
  bool send(const std::vector<int>& descriptors);

  std::mutex mutex_;  // of the socket
  Descriptor socket_;
  pid_t process_ = 0;
};

// A program of Python, in two parts.
struct PythonWords {
  std::vector<std::string> interpreter;  // and its options
  std::vector<std::string> arguments;    // the script, -m or -c, and what follows
};

// Returns nullopt for a program that a fork server cannot run: not Python's, or with options that are not simple switches.
std::optional<PythonWords> python_words(const std::vector<std::string>& words);

// Starts Python programs as forks of a process that has imported what they import, which saves most of the time of a short run.
//
// The process is simulator/python/cachalot_simulator/fork_server.py, which describes what a program finds, and the protocol.
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

// Makes simulated runs and replays on the workers of a Dask scheduler.
//
// simulator/python/cachalot_simulator/dask_runs.py does it: a worker runs the command `cachalot` that is installed there, in the
// same folder as here, and what the processes of the program report comes back, or what the command prints. Thread-safe.
class Cluster {
 public:
  // Connects to a scheduler, "tcp://host:8786", by an interpreter of Python. Throws InvalidArgument where this does not have
  // the package distributed, or the scheduler does not answer.
  Cluster(const std::string& python, const std::string& scheduler);

  // Returns how many runs the workers make at the same time, at least 1.
  int places() const { return places_; }

  // Records a run on a worker, as record_run of simulation.h. Heeds all options but strict and trace_path. Throws
  // InvalidArgument with the worker's message, and std::runtime_error if it is to stop.
  void record(const SimulationOptions& options, const std::filesystem::path& folder);

  // Returns what `cachalot advise --json` with these options prints of a file on a worker, which opens the same path, or is
  // sent the file.
  // Throws InvalidArgument with the worker's message.
  std::string advise(const std::vector<std::string>& options, const std::string& file, bool sends_file);

 private:
  PythonServer server_;
  int places_ = 1;
};

}  // namespace cachalot::tools
