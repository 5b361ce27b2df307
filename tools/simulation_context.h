// What a device holds beside the memory that the program asked for: the CUDA context and libraries, in a driver's
// report.
#pragma once

#include <cstddef>
#include <nlohmann/json.hpp>
#include <string>

#include "simulator/context_costs.h"

namespace cachalot::tools {

// Returns what a device of a driver's report was charged with.
simulator::ContextCharge context_of(const nlohmann::json& device);

// Returns "1.40 GiB: an estimate for Tesla T4 with cuBLAS; --context SIZE sets it"; "" if nothing was charged.
std::string describe_context(const nlohmann::json& device);

// Returns "1016.00 MiB: stacks, heap or printf buffer that the program made larger"; "" without larger limits.
std::string describe_limits(const nlohmann::json& device);

// Returns "10.00 MiB: an estimate, half to twice, for 3 executable graphs with 1,024 kernels"; "" if none takes memory.
std::string describe_graphs(const nlohmann::json& device);

// Returns "no memory for cublas, which takes 930.00 MiB, with 266.00 MiB free"; "" if there was memory.
std::string describe_lack(const nlohmann::json& device);

// Returns how much less and more than it was charged with a device may take on a GPU: the sum of all estimates.
simulator::Spread spread_of(const nlohmann::json& device);

// The same without the context and libraries, which take as much on each GPU as they do there: what NCCL adds.
simulator::Spread spread_of_others(const nlohmann::json& device);

// Returns what the spread is of: "the context", "NCCL" or "the context and NCCL"; "" without a spread.
std::string estimated_parts(const nlohmann::json& device);

// Returns whether the verdict is sure that the program fits, with so many bytes to spare.
bool fits_surely(const nlohmann::json& device, std::size_t spare_bytes);

// Returns ", with 7.40 GiB to spare, of which the context may take 311.00 MiB more"; if that is more than there is:
// ": 100.00 MiB to spare, but the context may take 311.00 MiB more".
std::string describe_spare(const nlohmann::json& device, std::size_t spare_bytes);

// Returns "242.00 MiB of it, an estimate: half to twice": what NCCL took of a device at the peak; "" if it took nothing.
std::string describe_nccl(const nlohmann::json& device);

// Returns "but the context may take 917.00 MiB less, and then there is memory for this" of a request (`bytes`,
// `free_bytes`) that failed, if that is so; otherwise "".
std::string describe_low_estimate(const nlohmann::json& device, const nlohmann::json& request);

}  // namespace cachalot::tools
