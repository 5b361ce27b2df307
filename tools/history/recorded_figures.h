// What a program's memory came to at each event, as it was recorded: for comparing a replay with it.
#pragma once

#include <cstdint>

#include "tools/history/history.h"

namespace cachalot::tools {

// Returns the bytes that an event adds to reserved memory; they are negative where it gives memory back.
std::int64_t reserved_change(const HistoryEvent& event);

// Return the reserved memory at the end, as the segments tell it, and before the first event. A history that was made by hand may
// have less than none before.
std::int64_t reserved_at_end(const DeviceHistory& device);
std::int64_t reserved_at_begin(const DeviceHistory& device);

struct RecordedFigures {
  std::uint64_t reserved_bytes = 0;   // by segments
  std::uint64_t allocated_bytes = 0;  // requested, of what lives
  std::uint64_t active_bytes = 0;     // the same with what waits for other streams

  // The figures after the event, of those before it.
  void add(const HistoryEvent& event);
};

// Returns the figures before the first event: those at the end, which the segments and blocks tell, less what the events
// changed. A history that does not end where its segments were taken can give wrong ones; it was then made by hand.
RecordedFigures figures_before(const DeviceHistory& device);

// Returns those at the end.
RecordedFigures figures_at_end(const DeviceHistory& device);

}  // namespace cachalot::tools
