// Waiting, on the host, for a stream of any Device.
#pragma once

#include "cachalot/device.h"
#include "cachalot/errors.h"

CACHALOT_BEGIN

// Returns when the work that was queued on `stream` is done. Not while the stream captures.
void wait_for(Device& device, Stream stream);

// For the handler of an error of a call on a stream: where CUDA says that the stream was destroyed, waits for all work on the
// device, of which the stream's may be a part. Throws other errors again, and DeviceReset where the wait shows a reset.
void wait_in_place_of_stream(Device& device, const CudaError& error);

CACHALOT_END
