// These functions answer questions about single blocks, and about the segment that a block lies in.
#pragma once

#include <cstddef>
#include <optional>
#include <string>

#include "blocks/block.h"
#include "device/addresses.h"
#include "heap/heap_state.h"

CACHALOT_BEGIN

struct BlockSizes {
  std::size_t requested;
  std::size_t allocated;
};

// Returns the segment of a block. Requires that its device's mutex is held.
AddressRange segment_of(const Block& block);

// These lock by themselves. Return nullopt if `ptr` is not a live allocation of `block`.
std::optional<AddressRange> base_allocation(const HeapState& state, const Block& block, const void* ptr);
std::optional<BlockSizes> sizes(const HeapState& state, const Block& block, const void* ptr);
// Returns true if `ptr` is a live allocation without memory until restore_physical.
bool sleeps(const HeapState& state, const Block& block, const void* ptr);
// Says what is at `ptr`, for messages: "is free", "lies inside the allocation at 0x…", …; "" if it is not of this
// device.
std::string describe(const HeapState& state, const void* ptr);

CACHALOT_END
