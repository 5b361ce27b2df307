// A program's memory at each event, as it was recorded: for comparing a replay with it.
#pragma once

#include <cstdint>

#include "tools/history/history.h"

namespace cachalot::tools {

struct RecordedFigures {
  std::uint64_t reserved_bytes = 0;   // by segments
  std::uint64_t allocated_bytes = 0;  // requested bytes of live allocations
  std::uint64_t active_bytes = 0;     // with memory that waits for other streams

  // The figures after the event, of those before it.
  void add(const HistoryEvent& event) {
    switch (event.action) {
      case HistoryEvent::Action::alloc:
        allocated_bytes += event.bytes;
        active_bytes += event.bytes;
        return;
      case HistoryEvent::Action::free_requested:
        allocated_bytes -= event.bytes;
        return;
      case HistoryEvent::Action::free_completed:
        active_bytes -= event.bytes;
        return;
      default:
        reserved_bytes += static_cast<std::uint64_t>(reserved_change(event));
        return;
    }
  }
};

// Returns the figures at the end.
inline RecordedFigures figures_at_end(const DeviceHistory& device) {
  RecordedFigures figures;
  figures.reserved_bytes = static_cast<std::uint64_t>(reserved_at_end(device));
  for (const HistoryBlock& block : device.blocks) {
    if (block.state == HistoryBlock::State::allocated) figures.allocated_bytes += block.requested_bytes;
    if (block.state != HistoryBlock::State::free) figures.active_bytes += block.requested_bytes;
  }
  return figures;
}

// Returns the figures before the first event: those at the end, which the segments and blocks tell, less what the events
// changed. A history that does not end where its segments were taken can give wrong ones; it was then made by hand.
inline RecordedFigures figures_before(const DeviceHistory& device) {
  RecordedFigures changes;
  for (const HistoryEvent& event : device.events) changes.add(event);
  RecordedFigures figures = figures_at_end(device);
  figures.reserved_bytes -= changes.reserved_bytes;
  figures.allocated_bytes -= changes.allocated_bytes;
  figures.active_bytes -= changes.active_bytes;
  return figures;
}

}  // namespace cachalot::tools
