// Pinned host memory as a Device: malloc pins, free unpins, and events are those of a GPU.
#pragma once

#include <memory>

#include "cachalot/device.h"
#include "device/pin_timer.h"

CACHALOT_BEGIN

// The legacy default stream, where nullptr stands for the host: cudaStreamLegacy.
inline const Stream kLegacyStream = reinterpret_cast<Stream>(1);

// Device 0 of an allocator. Its memory_info is the machine's. It has no virtual memory and shares nothing between processes:
// such calls throw CudaError (not supported). event_record throws InvalidArgument for a stream that captures. `timer` counts
// the calls of malloc and free.
std::shared_ptr<Device> pinned_host_memory(std::shared_ptr<Device> gpu, std::shared_ptr<PinTimer> timer);

CACHALOT_END
