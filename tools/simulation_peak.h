// What the memory of a PyTorch program's peak is for, and which code made it: lines of text for a device's part of a torch
// report (simulator/README.md).
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tools/analysis/sites.h"

namespace cachalot::tools {

// Returns "activations 3.10 GiB, parameters 474.70 MiB": what the bytes of `kinds` are for, the most first. "" for none.
std::string kinds_text(const nlohmann::json& kinds);

// Returns a line for each group of modules, the largest first: "  1.20 GiB in layers.*.mlp (12 modules): activations ...".
// Numbers in paths are one group; paths are as deep as leaves at most eight groups.
std::vector<std::string> module_lines(const nlohmann::json& modules);

// Returns the tree of the calls that allocated what was live at the peak, the outermost first. Calls with less than 2 % of
// all of it are left out.
std::vector<std::string> call_tree_lines(const nlohmann::json& stacks, Frames frames);

}  // namespace cachalot::tools
