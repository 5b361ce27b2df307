// The programs in a file, as advice takes them.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "tools/base/input_file.h"
#include "tools/history/history.h"
#include "tools/simulation/advice.h"

namespace cachalot::tools {

// One program on one device, and what the file says of the device.
struct RecordedProgram {
  AdvisedProgram program;
  // The most memory that the allocator could have, from the message of an allocation that failed.
  std::optional<std::size_t> usable_bytes;
  std::optional<std::size_t> device_bytes;   // the device's memory
  std::optional<std::size_t> context_bytes;  // of the context and libraries
};

// Returns the programs in a trace, or in any file that read_history reads: one for each device with events. A request that
// failed is played as well, and freed at once. Throws InvalidArgument, which names the file, also where it has no history.
std::vector<RecordedProgram> recorded_programs(InputFile file);

}  // namespace cachalot::tools
