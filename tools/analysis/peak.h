// Moments of a history that a reader asks for, and what lived then.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "tools/analysis/timeline.h"
#include "tools/history/allocations.h"
#include "tools/history/history.h"

namespace cachalot::tools {

enum class PeakKind : std::uint8_t { allocated_peak, reserved_peak, out_of_memory, end };

struct Peak {
  PeakKind kind = PeakKind::end;
  std::size_t event = 0;  // the number of events that had happened; 0: before the first
  std::int64_t time_us = 0;
  Held held;
  std::vector<std::uint32_t> live;  // the allocations, in their order
};

// Returns the first moment when the bytes were at their peak; for out_of_memory the last moment when memory ran out, or nullopt
// where it never did.
std::optional<Peak> find_peak(const DeviceHistory& device, std::span<const Allocation> allocations,
                              std::span<const std::uint64_t> blocks, PeakKind kind);

// Returns the moment after so many events, at most as many as there are.
Peak peak_after(const DeviceHistory& device, std::span<const Allocation> allocations,
                std::span<const std::uint64_t> blocks, std::size_t events);

// Returns the number of the last event of `oom`; nullopt without one.
std::optional<std::size_t> last_oom(const DeviceHistory& device);

}  // namespace cachalot::tools
