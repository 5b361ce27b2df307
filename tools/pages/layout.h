// Where an allocator put the allocations of a history, and which memory it held for them.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "tools/analysis/layout.h"
#include "tools/history/allocations.h"
#include "tools/history/history.h"
#include "tools/trace_reader.h"

namespace cachalot::tools {

struct Layout {
  std::string name;                        // "recorded"
  std::vector<std::uint64_t> addresses;    // by allocation; 0 where it has none: of 0 bytes
  std::vector<std::uint64_t> block_bytes;  // by allocation
  std::vector<MemoryRange> ranges;
  // Bytes of the device that are held after an event, where they change. The page heap may hold memory that is mapped nowhere.
  struct Held {
    std::uint32_t event = Allocation::kBefore;
    std::uint64_t bytes = 0;
  };
  std::vector<Held> held;  // empty: the ranges are all that is held
};

// Returns what the file says.
Layout recorded_layout(const DeviceHistory& device, std::span<const Allocation> allocations);

// Plays the history's trace (trace_of) on an allocator of `config`, options.h, with as much memory as it wants. The
// device lags, as in `cachalot compare`. A change tracker follows the allocator, which takes other paths then: on the page heap
// what it holds may differ by a few pages from a replay that nothing follows. Throws InvalidArgument for `config`.
Layout replayed_layout(const Trace& trace, std::span<const Allocation> allocations, const std::string& name,
                       const std::string& config);

}  // namespace cachalot::tools
