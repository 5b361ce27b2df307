// Free memory of an integrated GPU, whose memory is the machine's (Jetson, GB10). cuMemGetInfo counts there as free what nobody
// uses, without what the system would give up at once, such as its cache of files; and an allocation beyond what is available
// makes the machine swap until it stands still, where it should fail. Source of both: "Estimating Total Allocatable Device Memory on
// an Integrated GPU Device" in the CUDA for Tegra application note, and pytorch issue 174358.
#pragma once

#include <cstddef>
#include <optional>
#include <string>

#include "cachalot/device.h"

CACHALOT_BEGIN

// Where Linux says how its memory is used.
inline constexpr const char* kHostMemoryFile = "/proc/meminfo";

// Returns the bytes that the system can give without swapping: MemAvailable of a file in the form of /proc/meminfo; nullopt where
// the file cannot be read or does not have it.
std::optional<std::size_t> available_host_bytes(const std::string& file);

// Returns `reported`, what the driver said of an integrated GPU, with what is `available` as free, at most all that it has.
MemoryInfo with_available_bytes(const MemoryInfo& reported, std::optional<std::size_t> available);

CACHALOT_END
