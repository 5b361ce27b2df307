// What a device holds beside the memory that the program asked for: the CUDA context and libraries, in a driver's
// report.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "simulator/context_costs.h"

namespace cachalot::tools {

// Returns what a device of a driver's report was charged with.
simulator::ContextCharge context_of(const nlohmann::json& device);

// Returns "1.40 GiB: an estimate for Tesla T4 with cuBLAS; --context SIZE sets it"; "" if nothing was charged.
std::string describe_context(const nlohmann::json& device);

// Returns "no memory for cublas, which takes 930.00 MiB, with 266.00 MiB free"; "" if there was memory.
std::string describe_lack(const nlohmann::json& device);

}  // namespace cachalot::tools
