// The message of a request that ran out of memory: what the user needs next.
#pragma once

#include <cstddef>
#include <string>

#include "cachalot/device.h"
#include "heap/heap_state.h"
#include "heap/private_pools.h"

namespace cachalot {

// The first sentences are PyTorch's, so that programs that read its messages read these. `segment_bytes`: what the device was
// asked for.
std::string out_of_memory_text(const HeapState& state, const PrivatePools& pools, Request request,
                               std::size_t segment_bytes, const MemoryInfo& memory, const Held& held) CACHALOT_HELD;

}  // namespace cachalot
