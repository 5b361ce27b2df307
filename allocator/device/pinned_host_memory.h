// Pinned host memory as a Device: malloc pins, free unpins, and events are those of a GPU.
#pragma once

#include <memory>

#include "cachalot/device.h"

CACHALOT_BEGIN

// The legacy default stream, where nullptr stands for the host: cudaStreamLegacy.
inline const Stream kLegacyStream = reinterpret_cast<Stream>(1);

// Device 0 of an allocator. Its memory_info is the machine's. It has no virtual memory and shares nothing between processes:
// such calls throw CudaError (not supported). event_record throws InvalidArgument for a stream that captures.
std::shared_ptr<Device> pinned_host_memory(std::shared_ptr<Device> gpu);

CACHALOT_END
