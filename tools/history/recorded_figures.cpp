#include "tools/history/recorded_figures.h"

namespace cachalot::tools {

std::int64_t reserved_change(const HistoryEvent& event) {
  const auto bytes = static_cast<std::int64_t>(event.bytes);
  switch (event.action) {
    case HistoryEvent::Action::segment_alloc:
    case HistoryEvent::Action::segment_map:
      return bytes;
    case HistoryEvent::Action::segment_free:
    case HistoryEvent::Action::segment_unmap:
      return -bytes;
    default:
      return 0;
  }
}

std::int64_t reserved_at_end(const DeviceHistory& device) {
  std::int64_t reserved = 0;
  for (const HistorySegment& segment : device.segments) reserved += static_cast<std::int64_t>(segment.bytes);
  return reserved;
}

std::int64_t reserved_at_begin(const DeviceHistory& device) {
  std::int64_t reserved = reserved_at_end(device);
  for (const HistoryEvent& event : device.events) reserved -= reserved_change(event);
  return reserved;
}

void RecordedFigures::add(const HistoryEvent& event) {
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

RecordedFigures figures_before(const DeviceHistory& device) {
  RecordedFigures changes;
  for (const HistoryEvent& event : device.events) changes.add(event);
  RecordedFigures figures = figures_at_end(device);
  figures.reserved_bytes -= changes.reserved_bytes;
  figures.allocated_bytes -= changes.allocated_bytes;
  figures.active_bytes -= changes.active_bytes;
  return figures;
}

RecordedFigures figures_at_end(const DeviceHistory& device) {
  RecordedFigures figures;
  figures.reserved_bytes = static_cast<std::uint64_t>(reserved_at_end(device));
  for (const HistoryBlock& block : device.blocks) {
    if (block.state == HistoryBlock::State::allocated) figures.allocated_bytes += block.requested_bytes;
    if (block.state != HistoryBlock::State::free) figures.active_bytes += block.requested_bytes;
  }
  return figures;
}

}  // namespace cachalot::tools
