// The runs of a fit: its program with some values in its words, on a simulated GPU of unlimited memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "tools/fit.h"
#include "tools/fit_search.h"
#include "tools/fork_server.h"
#include "tools/simulation.h"

namespace cachalot::tools {

// A run that is to be made.
struct FitRun {
  std::string gpu;                   // a key of the table of GPUs
  std::vector<std::int64_t> values;  // of all parameters
  std::function<void(Recording)> done;
};

// Makes runs, several at the same time.
//
// The first ones are processes of their own. For the others a fork server imports what the first one has imported, if a run
// of the same values there allocates the same as before.
class FitRuns {
 public:
  // `options` must outlive this.
  explicit FitRuns(const FitOptions& options);
  ~FitRuns();
  FitRuns(const FitRuns&) = delete;
  FitRuns& operator=(const FitRuns&) = delete;

  // Calls `done` for each run, one at a time. Throws InvalidArgument for the first run that did not end well, and
  // std::runtime_error after SIGINT or SIGTERM. Runs that are under way are ended by a signal, and waited for after a failure.
  void make(std::vector<FitRun> runs);

  // Throws std::runtime_error after SIGINT or SIGTERM.
  void require_uninterrupted() const;

  std::size_t count() const { return count_; }
  // Whether in each run the replay held what the run held.
  bool are_exact() const { return are_exact_; }

 private:
  // The first run, by which others are compared.
  struct First {
    std::string gpu;
    std::vector<std::int64_t> values;
    Recording recording;
    std::vector<std::string> modules;  // that it has imported
  };

  class Interrupts;

  Recording record(const FitRun& run);
  void add_part(Recording& recording, const RecordedTrace& one, const std::string& values);
  void begin_to_fork();
  void tell_progress(std::size_t left);

  const FitOptions& options_;
  std::unique_ptr<Interrupts> interrupts_;
  std::mutex mutex_;
  std::size_t count_ = 0;
  bool are_exact_ = true;
  std::optional<First> first_;
  bool has_tried_to_fork_ = false;
  std::unique_ptr<ForkServer> fork_server_;  // none: each run is a process of its own
};

}  // namespace cachalot::tools
