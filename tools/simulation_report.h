// What the owner of a GPU wants to know of a program that ran on a simulated one.
#pragma once

#include <string>

#include "tools/simulation.h"

namespace cachalot::tools {

// Lines for people: for each process and device the peaks of memory used and reserved, the place of the peak and what
// held the memory then, fragmentation, driver calls, and whether it fits.
std::string to_text(const Simulation& simulation);

// The same, and all it is made of, as a JSON object on one line without the newline: exit_code and processes, each with
// process, driver and torch (null without PyTorch).
std::string to_json(const Simulation& simulation);

}  // namespace cachalot::tools
