// Waiting, on the host, for a stream of any Device.
#pragma once

#include "cachalot/device.h"

namespace cachalot {

// Returns when the work that was queued on `stream` is done. Not while the stream captures.
void wait_for(Device& device, Stream stream);

}  // namespace cachalot
