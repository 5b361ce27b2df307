// The message of an out-of-memory error tells how the memory is used and why no free block served the request.
#pragma once

#include <cstddef>
#include <string>

#include "cachalot/device.h"
#include "heap/heap_state.h"
#include "heap/private_pools.h"

CACHALOT_BEGIN

// Returns the message. Its first sentences are PyTorch's, so that programs that read those messages read these.
// `segment_bytes`: the size that the device was asked for. `limited_by`: Limits::holding.
std::string out_of_memory_text(const HeapState& state, const PrivatePools& pools, Request request,
                               std::size_t segment_bytes, const MemoryInfo& memory, const std::string& limited_by,
                               const Held& held) CACHALOT_HELD;

CACHALOT_END
