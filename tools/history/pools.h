// The pools of events, where the file does not tell them.
#pragma once

#include "tools/history/history.h"

namespace cachalot::tools {

// Returns whether an event has another pool than the default one.
bool has_pools(const DeviceHistory& device);

// Gives each event the pool of the segment at its address, if no event has a pool: PyTorch tells the pools of events since 2.12,
// and those of the segments at the end before. Memory of segments that are gone by then is taken to be the default pool's.
void complete_pools(DeviceHistory& device);

}  // namespace cachalot::tools
