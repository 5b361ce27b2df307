// Memory that a program sizes to the GPU.
//
// A serving engine asks how much memory is free, or how much a GPU has, and takes most of it for its cache, in blocks of one size or
// of a few. Elsewhere it takes less, or more: whether it fits follows from the rest.
#pragma once

#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "tools/replay/trace_reader.h"

namespace cachalot::tools {

struct SizedMemory {
  std::string at;                        // the program's line that allocated the first of the largest
  std::vector<std::size_t> block_bytes;  // the sizes of the blocks, in rising order
  std::vector<std::size_t> allocations;  // of the blocks: numbers among the allocations of the trace, in rising order
  std::size_t bytes = 0;                 // of all of them
  std::size_t told_bytes = 0;            // as the program was told before
  // The program was told how much memory is free, or how much the GPU has, or it took more until there was none.
  enum class By : std::uint8_t { free, total, trial } by = By::free;
};

// Returns the blocks of a device's part of a driver's report and of a torch report, of at most three sizes, which the program
// allocated next after it was told how much memory is free or is there, if they are at least half of that and a quarter of the
// device; a quarter is enough where other processes use the device as well, and a 32nd if all are an engine's cache. Where the
// program `went_on` after it had run out of memory, the blocks are those of the line that did, if they are half of the device. Else
// nullopt.
std::optional<SizedMemory> sized_memory(const nlohmann::json& device, const nlohmann::json& torch, bool went_on);

// Returns the trace without the blocks, and without later ones of these sizes. A trace that stays in its file is returned as it is.
Trace without(Trace trace, const SizedMemory& sized);

}  // namespace cachalot::tools
