// What a user wants to know of a program that ran on a simulated GPU.
#pragma once

#include <optional>
#include <string>

#include "tools/simulation.h"
#include "tools/analysis/sites.h"
#include "tools/style.h"

namespace cachalot::tools {

struct ReportOptions {
  bool verbose = false;          // also the calls of the driver, and a row for each GPU
  std::optional<Frames> frames;  // the tree of calls that made the peak, instead of lines
};

// Returns lines for people. The first says how a program ended that failed or was ended, and that it is therefore unknown
// whether it fits, unless memory ran out. Then for each process and device: the peaks of memory used and reserved, the
// place of the peak, what held the memory then and what it was for, and whether it fits. Where CUDA's rules were watched,
// each process's breaches follow, with their stacks.
std::string to_text(const Simulation& simulation, const ReportOptions& options, const Style& style);

// Returns the same, and all it is made of, as a JSON object on one line without the newline: exit_code, ending and
// processes, each with process, driver, torch (null without PyTorch) and cards (empty where it is not known on which GPUs it
// fits).
std::string to_json(const Simulation& simulation);

}  // namespace cachalot::tools
