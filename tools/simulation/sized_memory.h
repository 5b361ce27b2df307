// Memory that a program sizes to the GPU.
//
// A serving engine asks how much memory is free and takes most of it for its cache, in blocks of one size. Elsewhere it takes
// less, or more: whether it fits follows from the rest.
#pragma once

#include <cstddef>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "tools/replay/trace_reader.h"

namespace cachalot::tools {

struct SizedMemory {
  std::string at;  // the program's line that allocated it
  std::size_t block_bytes = 0;
  std::vector<std::size_t> allocations;  // of the blocks: numbers among the allocations of the trace, in rising order
  std::size_t free_bytes = 0;            // as the program was told before

  std::size_t bytes() const { return block_bytes * allocations.size(); }
};

// Returns the blocks of a device's part of a driver's report and of a torch report, which the program allocated next after it was
// told how much memory is free, if they are at least half of that and a quarter of the device. Else nullopt.
std::optional<SizedMemory> sized_memory(const nlohmann::json& device, const nlohmann::json& torch);

// Returns the trace without the blocks. A trace that stays in its file is returned as it is.
Trace without(Trace trace, const SizedMemory& sized);

}  // namespace cachalot::tools
