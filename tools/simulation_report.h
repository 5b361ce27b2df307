// What a user wants to know of a program that ran on a simulated GPU.
#pragma once

#include <string>

#include "tools/simulation.h"
#include "tools/style.h"

namespace cachalot::tools {

// Returns lines for people. A program that failed is said to have failed first. Then for each process and device: the
// peaks of memory used and reserved, the place of the peak and what held the memory then, and whether it fits; `verbose`
// adds the calls of the driver. Where CUDA's rules were watched, each process's breaches follow, with their stacks.
std::string to_text(const Simulation& simulation, bool verbose, const Style& style);

// Returns the same, and all it is made of, as a JSON object on one line without the newline: exit_code and processes, each
// with process, driver and torch (null without PyTorch).
std::string to_json(const Simulation& simulation);

}  // namespace cachalot::tools
