// The memory that PyTorch held when a recording began, for replays under its own policy: what a program holds later depends on
// the segments that it had, and on the free blocks in them.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "tools/history/allocations.h"
#include "tools/history/history.h"

namespace cachalot::tools {

struct RecordedStart {
  TraceStart trace;
  std::uint64_t peak_reserved_bytes = 0;  // by the segments, from the start on
};

// Returns allocations and frees that make the recorded segments on an empty device, in the order of their addresses, with the
// live and the free blocks in them. Segments that the history gives back before anything else, by
// torch.cuda.empty_cache(), are left out. `allocations` are those of the device.
//
// Returns nullopt where the replay of a history needs no such beginning, or it is not known: nothing lived then, the file has no
// segments, they are expandable, or the program's settings change how requests are rounded or blocks split.
std::optional<RecordedStart> recorded_start(const History& history, const DeviceHistory& device,
                                            std::span<const Allocation> allocations);

}  // namespace cachalot::tools
