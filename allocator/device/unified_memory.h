// Free memory of an integrated GPU, whose memory is the machine's (Jetson, GB10). cuMemGetInfo counts there as free the unused
// memory, without the memory that the system would give up at once, such as its cache of files; and an allocation beyond what is
// available makes the machine swap until it stands still, where it should fail. Source of both: "Estimating Total Allocatable Device
// Memory on an Integrated GPU Device" in the CUDA for Tegra application note, and pytorch issue 174358.
#pragma once

#include <cstddef>
#include <optional>
#include <string>

#include "cachalot/device.h"

CACHALOT_BEGIN

// The file in which Linux reports its memory use.
inline constexpr const char* kHostMemoryFile = "/proc/meminfo";

// Returns the bytes that the system can give without swapping: MemAvailable of a file in the form of /proc/meminfo; nullopt where
// the file cannot be read or does not have it.
std::optional<std::size_t> available_host_bytes(const std::string& file);

// Returns `reported`, the driver's figures of an integrated GPU, with the `available` bytes as free, at most all that it
// has.
MemoryInfo with_available_bytes(const MemoryInfo& reported, std::optional<std::size_t> available);

CACHALOT_END
