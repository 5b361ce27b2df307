#include "tools/simulation/sized_memory.h"

#include <algorithm>
#include <cstdint>

#include "tools/simulation/simulation_files.h"

namespace cachalot::tools {

using nlohmann::json;

std::optional<SizedMemory> sized_memory(const json& device, const json& torch) {
  constexpr std::size_t kLeastPartOfFree = 2;
  constexpr std::size_t kLeastPartOfDevice = 4;
  const json row = torch.value("largest_row", json());
  if (!row.is_object()) return std::nullopt;
  SizedMemory sized{.at = row.at("at").get<std::string>(),
                    .block_bytes = number(row, "block_bytes"),
                    .allocations = row.at("allocations").get<std::vector<std::size_t>>()};
  const auto begin = row.at("time_us").get<std::int64_t>();
  for (const json& question : device.at("memory_info")) {
    if (question.at("time_us").get<std::int64_t>() <= begin) sized.free_bytes = number(question, "free_bytes");
  }
  const bool is_sized = sized.free_bytes > 0 && sized.bytes() * kLeastPartOfFree >= sized.free_bytes &&
                        sized.bytes() * kLeastPartOfDevice >= number(device, "total_bytes");
  return is_sized ? std::optional(std::move(sized)) : std::nullopt;
}

Trace without(Trace trace, const SizedMemory& sized) {
  if (!trace.is_held()) return trace;
  std::vector<TraceEvent> kept;
  kept.reserve(trace.events.size());
  std::vector<bool> is_sized(trace.slots);
  std::size_t made = 0;
  for (const TraceEvent& event : trace.events) {
    if (event.empties_cache()) {
      kept.push_back(event);
      continue;
    }
    if (!event.is_free()) is_sized[event.slot] = std::ranges::binary_search(sized.allocations, made++);
    if (!is_sized[event.slot]) kept.push_back(event);
  }
  trace.allocation_count -= sized.allocations.size();
  trace.events = std::move(kept);
  trace.event_count = trace.events.size();
  return trace;
}

}  // namespace cachalot::tools
