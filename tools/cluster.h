// Makes simulated runs and replays on the workers of a Dask scheduler.
//
// simulator/python/cachalot_simulator/dask_runs.py does it: a worker runs the command `cachalot` that is installed there, in the
// same folder as here, and what the processes of the program report comes back, or what the command prints.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "tools/python_server.h"
#include "tools/simulation.h"

namespace cachalot::tools {

// Thread-safe.
class Cluster {
 public:
  // Connects to a scheduler, "tcp://host:8786", by an interpreter of Python. Throws InvalidArgument where this does not have
  // the package distributed, or the scheduler does not answer.
  Cluster(const std::string& python, const std::string& scheduler);

  // Returns how many runs the workers make at the same time, at least 1.
  int places() const { return places_; }

  // As record_run of simulation.h, on a worker. Heeds all options but strict and trace_path.
  // Throws InvalidArgument with the worker's message, and std::runtime_error if it is to stop.
  void record(const SimulationOptions& options, const std::filesystem::path& folder);

  // Returns what `cachalot advise --json` with these options prints of a file on a worker, which opens the same path, or is
  // sent the file. Throws InvalidArgument with the worker's message.
  std::string advise(const std::vector<std::string>& options, const std::string& file, bool sends_file);

 private:
  PythonServer server_;
  int places_ = 1;
};

}  // namespace cachalot::tools
