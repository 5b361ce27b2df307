// The start of a recorded program's replay: its settings, and the memory that PyTorch held.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "cachalot/options.h"
#include "tools/history/allocations.h"
#include "tools/history/history.h"

namespace cachalot::tools {

// PYTORCH_CUDA_ALLOC_CONF of a recorded program, as options for a replay.

// Returns the settings of the text that decide where PyTorch's default allocator puts a block, without those named `without`: an
// option text for heap:segments. Settings that cannot be read are left out.
std::string segment_config(std::string_view settings, std::string_view without = "");

// Returns what cachalot's page heap takes of the settings, as it does when the program enables it: an option text.
std::string page_config(std::string_view settings);

// Returns the settings of the default allocator as options.
Options segment_options(std::string_view settings);

// Returns whether the program ran with expandable segments.
bool is_expandable(std::string_view settings);

// Returns how much memory was reserved at most, by the events of segments and the segments at the end; nullopt where the
// history begins later than the program: there was memory before.
std::optional<std::size_t> recorded_reserved_bytes(const DeviceHistory& device);

// The memory that PyTorch held when a recording began, for replays under its own policy: what a program holds later depends on
// the segments that it had, and on the free blocks in them.
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
