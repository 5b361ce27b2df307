// Advice about files and programs: what is known of their devices, and where the replays are made.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "simulator/context_costs.h"
#include "tools/advice/advice.h"
#include "tools/card_table.h"
#include "tools/simulation.h"

namespace cachalot::tools {

// Returns the GPUs to answer for, with what a context takes on each.
using CardsFor = std::function<std::vector<Card>(const simulator::ContextCharge&, const simulator::Spread& of_others)>;

struct AdviceRequest {
  CardsFor cards;
  bool plays_on_first_card = false;    // otherwise on the device of the recording, where that is known
  std::optional<std::string> context;  // as SimulationOptions::context
  AdviceOptions options;
};

// The workers of a Dask scheduler.
struct AdviceCluster {
  std::string python;  // an interpreter with the package distributed
  std::string scheduler;
  bool sends_files = false;          // otherwise workers open the same paths
  std::vector<std::string> words{};  // the options of `cachalot advise`
};

// Returns the advice about each program and device of the files, in their order. A file that cannot be read has one with the
// error. Throws InvalidArgument for what is wrong with the request.
std::vector<Advice> advise_files(const std::vector<std::string>& files, const AdviceRequest& request);

// The same, on the workers of a cluster: each file is a task of `cachalot advise --json`. Only host times differ.
// `progress` is called by one thread at a time.
std::vector<Advice> advise_on_cluster(const std::vector<std::string>& files, const AdviceCluster& cluster,
                                      const std::function<void(double done)>& progress);

// Runs a program on a simulated GPU with enough memory, and returns the advice about each device that it used. Throws
// InvalidArgument, also for a program that does not end well.
std::vector<Advice> advise_program(SimulationOptions simulation, const AdviceRequest& request);

}  // namespace cachalot::tools
