#include "tools/analysis/peak.h"

namespace cachalot::tools {
namespace {

// Returns how many events had happened at the peak.
std::size_t events_until_peak(HeldCursor cursor, std::uint64_t Held::*bytes) {
  std::size_t at = 0;
  std::uint64_t peak = cursor.held().*bytes;
  while (!cursor.is_at_end()) {
    cursor.advance();
    if (cursor.held().*bytes <= peak) continue;
    peak = cursor.held().*bytes;
    at = cursor.event();
  }
  return at;
}

}  // namespace

std::optional<std::size_t> last_oom(const DeviceHistory& device) {
  for (std::size_t i = device.events.size(); i > 0; --i) {
    if (device.events[i - 1].action == HistoryEvent::Action::oom) return i - 1;
  }
  return std::nullopt;
}

Peak peak_after(const DeviceHistory& device, std::span<const Allocation> allocations,
                std::span<const std::uint64_t> blocks, std::size_t events) {
  HeldCursor cursor(device, allocations, blocks);
  while (cursor.event() < events) cursor.advance();
  Peak peak{.event = events, .held = cursor.held(), .live = {}};
  if (!device.events.empty()) peak.time_us = device.events[events == 0 ? 0 : events - 1].time_us;
  for (std::uint32_t i = 0; i < allocations.size(); ++i) {
    const Allocation& one = allocations[i];
    const bool has_begun = one.begin == Allocation::kBefore || one.begin < events;
    if (has_begun && (one.end == Allocation::kNever || one.end >= events)) peak.live.push_back(i);
  }
  return peak;
}

std::optional<Peak> find_peak(const DeviceHistory& device, std::span<const Allocation> allocations,
                              std::span<const std::uint64_t> blocks, PeakKind kind) {
  std::size_t event = device.events.size();
  if (kind == PeakKind::out_of_memory) {
    const std::optional<std::size_t> oom = last_oom(device);
    if (!oom) return std::nullopt;
    event = *oom + 1;
  } else if (kind != PeakKind::end) {
    event = events_until_peak(HeldCursor(device, allocations, blocks),
                              kind == PeakKind::allocated_peak ? &Held::allocated : &Held::reserved);
  }
  Peak peak = peak_after(device, allocations, blocks, event);
  peak.kind = kind;
  return peak;
}

}  // namespace cachalot::tools
