// The figures of a message that memory ran out: which may be true, and what follows from them.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string_view>

#include "tools/analysis/oom_message.h"

namespace cachalot::tools {

using OomFigure = std::optional<std::uint64_t> OomMessage::*;

// The figures of a device and its programs.
inline constexpr std::array kOomFigures = {&OomMessage::total_bytes,       &OomMessage::free_bytes,
                                           &OomMessage::allowed_bytes,     &OomMessage::allocated_bytes,
                                           &OomMessage::reserved_bytes,    &OomMessage::beside_bytes,
                                           &OomMessage::process_bytes,     &OomMessage::private_bytes,
                                           &OomMessage::unallocated_bytes, &OomMessage::largest_free_bytes};

// The framework whose messages have no reserved memory.
inline constexpr std::string_view kAsyncAllocator = "PyTorch on CUDA with cudaMallocAsync";

// Drops figures that cannot be true, adds those that follow from others, finds this process among those of a container, and says
// whether the message was cut off.
void complete(OomMessage& message);

// Returns the allocated memory, without the free blocks of private pools; 0 where the message does not tell.
std::uint64_t live_bytes(const OomMessage& message);

// Returns what this process holds of the device, as far as the message tells.
std::optional<std::uint64_t> own_bytes(const OomMessage& message);

// Returns the bytes of the other processes, 0 where the message names none.
std::uint64_t other_bytes(const OomMessage& message);

// Returns what is neither free nor held by the processes that the message names: of processes and libraries that it does not name.
// nullopt where a figure for it is missing.
std::optional<std::uint64_t> unnamed_bytes(const OomMessage& message);

}  // namespace cachalot::tools
